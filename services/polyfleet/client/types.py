"""What the client gives back beside `polyfleet.wire`'s answers: a whole one, put together."""

from __future__ import annotations

from dataclasses import dataclass

from polyfleet.wire.answers import FinishReason, TokenLogprobs, Usage
from polyfleet.wire.tools import ToolCall


@dataclass(frozen=True, slots=True)
class Choice:
    """One whole continuation. `finish_reason` is None only where a stream was read half.

    What the model thought stands in `reasoning`, what it called in `tool_calls`; neither is in `text`.
    """

    index: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...]
    finish_reason: FinishReason | None
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()  # of all its tokens; the first one's says nothing


@dataclass(frozen=True, slots=True)
class Completion:
    """A whole answer. `worker_ids` names the workers that computed it, in order (more than one when it moved)."""

    request_id: str
    worker_ids: tuple[str, ...]
    choices: tuple[Choice, ...]
    usage: Usage | None

    @property
    def text(self) -> str:
        """Text of the first choice."""
        return self.choices[0].text

    @property
    def reasoning(self) -> str:
        """What the model thought before the first choice's text."""
        return self.choices[0].reasoning

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """Calls of the first choice."""
        return self.choices[0].tool_calls

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Token ids of the first choice."""
        return self.choices[0].token_ids

    @property
    def finish_reason(self) -> FinishReason | None:
        """Finish reason of the first choice."""
        return self.choices[0].finish_reason

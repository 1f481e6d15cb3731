"""What the client gives back beside `polyfleet.wire`'s answers: a whole one, put together."""

from __future__ import annotations

from dataclasses import dataclass

from polyfleet.wire.answers import FinishReason, TokenLogprobs, Usage


@dataclass(frozen=True, slots=True)
class Choice:
    """One whole continuation. `finish_reason` is None only where a stream was read half."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...]
    finish_reason: FinishReason | None


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
    def token_ids(self) -> tuple[int, ...]:
        """Token ids of the first choice."""
        return self.choices[0].token_ids

    @property
    def finish_reason(self) -> FinishReason | None:
        """Finish reason of the first choice."""
        return self.choices[0].finish_reason

"""One choice of an answer, as it comes together from the increments of a stream."""

from dataclasses import dataclass, field

from polyfleet.wire.answers import Delta, FinishReason, TokenLogprobs
from polyfleet.wire.tools import GatheredCalls


@dataclass(slots=True)
class GatheredChoice:
    """Everything that its deltas say."""

    texts: list[str] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    calls: GatheredCalls = field(default_factory=GatheredCalls)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    stop_string: str = ""

    def add(self, delta: Delta) -> None:
        """Take one."""
        self.texts.append(delta.text)
        self.thoughts.append(delta.reasoning)
        for call in delta.tool_calls:
            self.calls.add(call)
        self.token_ids += delta.token_ids
        self.logprobs += delta.logprobs
        self.prompt_logprobs += delta.prompt_logprobs
        self.finish_reason = delta.finish_reason or self.finish_reason
        self.stop_string = delta.stop_string or self.stop_string

    @property
    def text(self) -> str:
        """What was said."""
        return "".join(self.texts)

    @property
    def reasoning(self) -> str:
        """What was thought."""
        return "".join(self.thoughts)

"""What a stream has said so far: collects its messages into a Completion and notices an end that is none."""

from __future__ import annotations

from dataclasses import dataclass, field

from polyfleet.client.errors import DataLossError
from polyfleet.client.types import Choice, Completion
from polyfleet.convert.inference import delta_of
from polyfleet.v1 import inference_pb2 as pb
from polyfleet.wire.answers import Delta, FinishReason, TokenLogprobs, Usage
from polyfleet.wire.tools import GatheredCalls


@dataclass(slots=True)
class _OpenChoice:
    texts: list[str] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    calls: GatheredCalls = field(default_factory=GatheredCalls)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish_reason: FinishReason | None = None

    def add(self, delta: Delta) -> None:
        self.texts.append(delta.text)
        self.thoughts.append(delta.reasoning)
        for call in delta.tool_calls:
            self.calls.add(call)
        self.token_ids += delta.token_ids
        self.logprobs += delta.logprobs
        self.finish_reason = delta.finish_reason or self.finish_reason

    def whole(self, index: int) -> Choice:
        """The choice so far."""
        said, thought, calls = "".join(self.texts), "".join(self.thoughts), self.calls.calls
        return Choice(index, said, tuple(self.token_ids), tuple(self.logprobs), self.finish_reason, thought, calls)


@dataclass(slots=True)
class Transcript:
    """Everything received of one Generate call."""

    request_id: str = ""
    worker_ids: list[str] = field(default_factory=list)
    usage: Usage | None = None
    _choices: dict[int, _OpenChoice] = field(default_factory=dict)

    def add(self, message: pb.GenerateResponse) -> Delta:
        """Take one message and give it back as a Delta."""
        delta = delta_of(message)
        self.request_id = delta.request_id or self.request_id
        if delta.worker_id:
            self.worker_ids.append(delta.worker_id)
        self.usage = delta.usage or self.usage
        self._choices.setdefault(delta.choice, _OpenChoice()).add(delta)
        return delta

    def check_end(self) -> None:
        """Raise DataLossError unless the stream has ended as the API promises: every choice finished, usage last."""
        unfinished = not self._choices or any(choice.finish_reason is None for choice in self._choices.values())
        if unfinished or self.usage is None:
            raise DataLossError("DATA_LOSS", "the stream ended before the answer did; send the request again")

    def completion(self) -> Completion:
        """What has come so far; the whole answer once the stream has ended."""
        choices = tuple(choice.whole(index) for index, choice in sorted(self._choices.items()))
        return Completion(self.request_id, tuple(self.worker_ids), choices, self.usage)

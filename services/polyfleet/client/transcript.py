"""What a stream has said so far: collects its messages into a Completion and notices an end that is none."""

from __future__ import annotations

from dataclasses import dataclass, field

from polyfleet.client.errors import DataLossError
from polyfleet.client.types import Choice, Completion
from polyfleet.convert.inference import delta_of
from polyfleet.v1 import inference_pb2 as pb
from polyfleet.wire.answers import Delta, Usage
from polyfleet.wire.gathered import GatheredChoice


@dataclass(slots=True)
class Transcript:
    """Everything received of one Generate call."""

    request_id: str = ""
    worker_ids: list[str] = field(default_factory=list)
    usage: Usage | None = None
    _choices: dict[int, GatheredChoice] = field(default_factory=dict)

    def add(self, message: pb.GenerateResponse) -> Delta:
        """Take one message and give it back as a Delta."""
        delta = delta_of(message)
        self.request_id = delta.request_id or self.request_id
        if delta.worker_id:
            self.worker_ids.append(delta.worker_id)
        self.usage = delta.usage or self.usage
        self._choices.setdefault(delta.choice, GatheredChoice()).add(delta)
        return delta

    def check_end(self) -> None:
        """Raise DataLossError unless the stream has ended as the API promises: every choice finished, usage last."""
        unfinished = not self._choices or any(choice.finish_reason is None for choice in self._choices.values())
        if unfinished or self.usage is None:
            raise DataLossError("DATA_LOSS", "the stream ended before the answer did; send the request again")

    def completion(self) -> Completion:
        """What has come so far; the whole answer once the stream has ended."""
        choices = tuple(_choice(index, choice) for index, choice in sorted(self._choices.items()))
        return Completion(self.request_id, tuple(self.worker_ids), choices, self.usage)


def _choice(index: int, so_far: GatheredChoice) -> Choice:
    ids, logprobs, calls = tuple(so_far.token_ids), tuple(so_far.logprobs), so_far.calls.calls
    scores = tuple(so_far.prompt_logprobs)
    return Choice(index, so_far.text, ids, logprobs, so_far.finish_reason, so_far.reasoning, calls, scores)

"""Starts that a worker's status may not count yet: what its gateway adds to it until it does."""

from dataclasses import dataclass, replace

from polyfleet.placement.fleet import Worker
from polyfleet.v1 import worker_pb2

EVENTS_TO_REPORT = 2  # of a worker that doesn't say what it reports: the first event may have been under way before


@dataclass(slots=True)
class _Start:
    tokens: int  # to prefill
    number: int | None  # among the session's starts, from 1 on; None: it is none of them
    events: int = 0  # that have come since


class UnreportedStarts:
    """Those of one connection, by sequence."""

    def __init__(self) -> None:
        self._starts: dict[str, _Start] = {}
        self._num_starts = 0

    def __len__(self) -> int:
        return len(self._starts)

    def add(self, sequence_id: str, tokens: int) -> None:
        """One more, with so many tokens to prefill."""
        self._num_starts += 1
        self._starts[sequence_id] = _Start(tokens, self._num_starts)

    def expect(self, name: str, tokens: int) -> None:
        """Another worker will ask for so many tokens to be prefilled."""
        self._starts[name] = _Start(tokens, None)

    def discard(self, sequence_id: str) -> None:
        """There is news of it, or it was cancelled."""
        self._starts.pop(sequence_id, None)

    def strike(self, event: worker_pb2.SessionEvent) -> None:
        """Forget those that the event's status counts by now."""
        for sequence_id, start in list(self._starts.items()):
            start.events += 1
            if start.number is not None and event.HasField("reported_starts"):
                reported = start.number <= event.reported_starts
            else:
                reported = start.events >= EVENTS_TO_REPORT
            if reported:
                del self._starts[sequence_id]

    def added_to(self, worker: Worker) -> Worker:
        """The worker with their load."""
        if not self._starts:
            return worker
        return replace(
            worker,
            waiting_sequences=worker.waiting_sequences + len(self._starts),
            waiting_prefill_tokens=worker.waiting_prefill_tokens + sum(each.tokens for each in self._starts.values()),
        )

"""Ledger: the one account of the sequences that the engine was given, those it still holds and how the others ended."""

from bisect import insort

from polyfleet.engine.sequence import Sequence, SequenceState


class Ledger:
    """Holds every sequence that has not ended, in two queues by rank, and counts those that have.

    admitted = finished + failed + cancelled + running + waiting, always.
    """

    def __init__(self) -> None:
        self.running: list[Sequence] = []  # best rank first; these hold blocks
        self.waiting: list[Sequence] = []  # best rank first; these hold none
        self.admitted = 0
        self._ended = dict.fromkeys((SequenceState.FINISHED, SequenceState.FAILED, SequenceState.CANCELLED), 0)
        self._sequences: dict[str, Sequence] = {}

    def __len__(self) -> int:
        return len(self._sequences)

    def __contains__(self, sequence_id: str) -> bool:
        return sequence_id in self._sequences

    @property
    def finished(self) -> int:
        """Sequences that ended well."""
        return self._ended[SequenceState.FINISHED]

    @property
    def failed(self) -> int:
        """Sequences that ended with an error."""
        return self._ended[SequenceState.FAILED]

    @property
    def cancelled(self) -> int:
        """Sequences that their owner gave up."""
        return self._ended[SequenceState.CANCELLED]

    def get(self, sequence_id: str) -> Sequence | None:
        """A sequence that has not ended."""
        return self._sequences.get(sequence_id)

    def admit(self, sequence: Sequence) -> None:
        """Take a new sequence in; its id must be free."""
        self._sequences[sequence.request.sequence_id] = sequence
        insort(self.waiting, sequence, key=_rank)
        self.admitted += 1

    def move(self, sequence: Sequence, state: SequenceState) -> None:
        """Change a sequence's state and put it into the queue, or the count, of that state."""
        queue = self._queue(sequence.state)
        sequence.move(state)
        queue.remove(sequence)
        if state in self._ended:
            del self._sequences[sequence.request.sequence_id]
            self._ended[state] += 1
        else:
            insort(self._queue(state), sequence, key=_rank)

    def check(self) -> None:
        """Raise AssertionError unless queues, states and counts agree."""
        present = len(self.running) + len(self.waiting)
        assert present == len(self._sequences), "a sequence is in no queue or in two"
        assert self.admitted == sum(self._ended.values()) + present, "a sequence was lost or counted twice"
        for state in (SequenceState.RUNNING, SequenceState.WAITING):
            queue = self._queue(state)
            assert all(each.state is state for each in queue), f"a sequence in the {state.value} queue is not"
            assert queue == sorted(queue, key=_rank), f"the {state.value} queue is out of order"
        assert not any(each.blocks for each in self.waiting), "a waiting sequence holds blocks"

    def _queue(self, state: SequenceState) -> list[Sequence]:
        return self.running if state is SequenceState.RUNNING else self.waiting


def _rank(sequence: Sequence) -> tuple[int, int]:
    return sequence.rank

"""Ledger: the one account of the sequences that the engine was given, those it still holds and how the others ended."""

from bisect import insort

from polyfleet.engine.step.sequence import Sequence, SequenceState


class Ledger:
    """Holds every sequence that has not ended, in two queues by rank, and counts those that have.

    admitted = finished + failed + cancelled + running + waiting, always.
    """

    def __init__(self) -> None:
        self.running: list[Sequence] = []  # best rank first; these hold blocks
        self.waiting: list[Sequence] = []  # best rank first; these hold none
        self.waiting_tokens = 0  # of these
        self.num_moves = 0  # how often a sequence has changed its state
        self.admitted = 0
        self.finished = 0  # ended well
        self.failed = 0  # ended with an error
        self.cancelled = 0  # given up by their owner
        self.sequences: dict[str, Sequence] = {}  # all of these, by id

    def __len__(self) -> int:
        return len(self.sequences)

    def __contains__(self, sequence_id: str) -> bool:
        return sequence_id in self.sequences

    def get(self, sequence_id: str) -> Sequence | None:
        """A sequence that has not ended."""
        return self.sequences.get(sequence_id)

    def admit(self, sequence: Sequence) -> None:
        """Take a new sequence in; its id must be free."""
        self.sequences[sequence.sequence_id] = sequence
        self._enqueue(sequence)
        self.admitted += 1

    def move(self, sequence: Sequence, state: SequenceState) -> None:
        """Change a sequence's state and put it into the queue, or the count, of that state."""
        queue = self._queue(sequence.state)
        sequence.move(state)
        self.num_moves += 1
        queue.remove(sequence)
        if queue is self.waiting:
            self.waiting_tokens -= sequence.num_tokens
        if state is SequenceState.RUNNING or state is SequenceState.WAITING:
            self._enqueue(sequence)
            return
        del self.sequences[sequence.sequence_id]
        if state is SequenceState.FINISHED:
            self.finished += 1
        elif state is SequenceState.FAILED:
            self.failed += 1
        else:
            self.cancelled += 1

    def check(self) -> None:
        """Raise AssertionError unless queues, states and counts agree."""
        present = len(self.running) + len(self.waiting)
        assert present == len(self.sequences), "a sequence is in no queue or in two"
        ended = self.finished + self.failed + self.cancelled
        assert self.admitted == ended + present, "a sequence was lost or counted twice"
        for state in (SequenceState.RUNNING, SequenceState.WAITING):
            queue = self._queue(state)
            assert all(each.state is state for each in queue), f"a sequence in the {state.value} queue is not"
            assert queue == sorted(queue, key=_rank), f"the {state.value} queue is out of order"
        assert not any(each.blocks for each in self.waiting), "a waiting sequence holds blocks"
        assert self.waiting_tokens == sum(each.num_tokens for each in self.waiting), "waiting tokens are miscounted"

    def _enqueue(self, sequence: Sequence) -> None:
        queue = self._queue(sequence.state)
        insort(queue, sequence, key=_rank)
        if queue is self.waiting:
            self.waiting_tokens += sequence.num_tokens

    def _queue(self, state: SequenceState) -> list[Sequence]:
        return self.running if state is SequenceState.RUNNING else self.waiting


def _rank(sequence: Sequence) -> tuple[int, int]:
    return sequence.rank

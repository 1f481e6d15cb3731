"""Sequence: its state table, its tokens across prompt and generated, how it ends."""

import itertools

import numpy as np
import pytest

from polyfleet.engine.step.sequence import TRANSITIONS, Sequence, SequenceState
from polyfleet.wire.answers import FinishReason
from polyfleet.wire.hashing import chain_hashes
from polyfleet.wire.requests import Pooling, SequenceRequest

ENDS = frozenset({2})


def make(longest: int = 7, **changes: object) -> Sequence:
    request = SequenceRequest("s", (10, 11, 12), max_tokens=4, **changes)  # type: ignore[arg-type]
    return Sequence(request, arrival=0, arrival_seconds=0.0, longest=longest, end_token_ids=ENDS)


def accept(sequence: Sequence, token_id: int, *, drawing: bool = True) -> FinishReason | None:
    """What a draw of this token comes to."""
    if drawing:
        sequence.plan(sequence.num_uncomputed, 1)
    return sequence.accept(token_id)


@pytest.mark.parametrize(("old", "new"), list(itertools.product(SequenceState, SequenceState)))
def test_only_changes_of_the_table_are_possible(old: SequenceState, new: SequenceState) -> None:
    sequence = make()
    sequence.state = old
    if new in TRANSITIONS[old]:
        sequence.move(new)
        assert sequence.state is new
    else:
        with pytest.raises(RuntimeError, match=f"a {old.value} sequence can't become {new.value}"):
            sequence.move(new)


def test_every_state_but_the_ends_leads_on() -> None:
    assert {state for state, targets in TRANSITIONS.items() if not targets} == {
        SequenceState.FINISHED,
        SequenceState.FAILED,
        SequenceState.CANCELLED,
    }


def test_tokens_run_over_prompt_and_generated() -> None:
    sequence = make(generated_ids=(20, 21))
    everything = [10, 11, 12, 20, 21]
    for start, end in itertools.combinations(range(6), 2):
        assert list(sequence.tokens(start, end)) == everything[start:end]


def test_hashes_are_those_of_the_wire() -> None:
    sequence = make(generated_ids=(20, 21, 22))
    assert sequence.chain(2, 2) == list(chain_hashes([10, 11, 12, 20], 2))
    assert sequence.chain(3, 2) == list(chain_hashes([10, 11, 12, 20, 21, 22], 2))
    assert sequence.chain(1, 2) == list(chain_hashes([10, 11], 2))


def test_end_tokens_are_not_kept() -> None:
    sequence = make()
    assert accept(sequence, 7) is None
    assert accept(sequence, 2) is FinishReason.STOP
    assert sequence.generated_ids == [7]


def test_ignore_eos_keeps_end_tokens_but_not_stop_tokens() -> None:
    sequence = make(ignore_eos=True, stop_token_ids=(5,))
    assert accept(sequence, 2) is None
    assert accept(sequence, 5) is FinishReason.STOP
    assert sequence.generated_ids == [2]


def test_max_tokens_counts_what_was_generated_before() -> None:
    sequence = make(generated_ids=(20, 21, 22))
    assert accept(sequence, 7) is FinishReason.LENGTH
    assert sequence.generated_ids == [20, 21, 22, 7]


def test_the_context_ends_a_sequence() -> None:
    sequence = make(longest=5)
    assert accept(sequence, 7) is None
    assert accept(sequence, 7) is FinishReason.LENGTH
    assert sequence.num_tokens == 5


def test_mean_pooling_divides_by_the_prompt() -> None:
    sequence = make(pooling=Pooling.MEAN)
    sequence.add_pooled(np.array([1.0, 2.0]))
    sequence.add_pooled(np.array([5.0, 4.0]))
    assert sequence.embedding() == (2.0, 2.0)
    assert not sequence.reads_prefix


def test_last_pooling_keeps_the_row() -> None:
    sequence = make(pooling=Pooling.LAST)
    sequence.add_pooled(np.array([1.0, 2.0]))
    assert sequence.embedding() == (1.0, 2.0)
    assert sequence.reads_prefix


def test_preemption_forgets_what_is_under_way() -> None:
    sequence = make(generated_ids=(20,))
    assert not sequence.plan(3, 1)
    assert sequence.plan(1, 2)
    assert (sequence.num_tokens, sequence.num_drawing, sequence.num_computed) == (5, 1, 4)
    sequence.forget_computed()
    assert (sequence.num_tokens, sequence.num_drawing, sequence.num_computed) == (4, 0, 0)


def test_a_token_that_is_being_drawn_is_named_by_its_slot() -> None:
    sequence = make()
    sequence.place = (7, 1)
    assert sequence.next_token() == 10
    sequence.plan(3, 1)
    assert sequence.next_token() == -1 - 7
    accept(sequence, 44, drawing=False)
    assert sequence.next_token() == 44

"""Sequence: its state table, its tokens across prompt and generated, how it ends."""

import itertools

import pytest

from polyfleet.engine.batch import PoolingKind
from polyfleet.engine.request import FinishReason, SequenceRequest
from polyfleet.engine.sequence import TRANSITIONS, Sequence, SequenceState
from polyfleet.sampling.draw import SampledToken
from polyfleet.wire.hashing import chain_hashes
from polyfleet.wire.sampling import SamplingParams

ENDS = frozenset({2})


def make(**changes: object) -> Sequence:
    request = SequenceRequest("s", (10, 11, 12), max_tokens=4, **changes)  # type: ignore[arg-type]
    return Sequence(request, arrival=0, arrival_seconds=0.0)


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
    assert sequence.accept(SampledToken(7), 100, ENDS) is None
    assert sequence.accept(SampledToken(2), 100, ENDS) is FinishReason.STOP
    assert sequence.generated_ids == [7]


def test_ignore_eos_keeps_end_tokens_but_not_stop_tokens() -> None:
    sequence = make(ignore_eos=True, stop_token_ids=frozenset({5}))
    assert sequence.accept(SampledToken(2), 100, ENDS) is None
    assert sequence.accept(SampledToken(5), 100, ENDS) is FinishReason.STOP
    assert sequence.generated_ids == [2]


def test_max_tokens_counts_what_was_generated_before() -> None:
    sequence = make(generated_ids=(20, 21, 22))
    assert sequence.accept(SampledToken(7), 100, ENDS) is FinishReason.LENGTH
    assert sequence.generated_ids == [20, 21, 22, 7]


def test_the_context_ends_a_sequence() -> None:
    sequence = make()
    assert sequence.accept(SampledToken(7), 5, ENDS) is None
    assert sequence.accept(SampledToken(7), 5, ENDS) is FinishReason.LENGTH
    assert sequence.num_tokens == 5


def test_mean_pooling_divides_by_the_prompt() -> None:
    sequence = make(pooling=PoolingKind.MEAN)
    sequence.add_pooled((1.0, 2.0))
    sequence.add_pooled((5.0, 4.0))
    assert sequence.embedding() == (2.0, 2.0)
    assert not sequence.reads_prefix


def test_last_pooling_keeps_the_row() -> None:
    sequence = make(pooling=PoolingKind.LAST)
    sequence.add_pooled((1.0, 2.0))
    assert sequence.embedding() == (1.0, 2.0)
    assert sequence.reads_prefix


def test_counts_for_penalties_outlive_preemption_and_follow_the_answer() -> None:
    sequence = make(generated_ids=(20,), params=SamplingParams(temperature=0.0, presence_penalty=1.0))
    counts = sequence.draw().counts
    assert counts is not None
    sequence.accept(SampledToken(11), 100, ENDS)
    sequence.forget_computed()
    again = sequence.draw()
    assert again.counts is counts
    assert again.position == 5
    assert dict(zip(counts.ids.tolist(), counts.generated.tolist(), strict=True)) == {10: 0, 11: 1, 12: 0, 20: 1}


def test_draws_without_penalties_count_nothing() -> None:
    assert make().draw().counts is None

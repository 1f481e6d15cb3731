"""Assembler: plans of sequences that decode on are those that it would write anew."""

from dataclasses import fields
from itertools import pairwise

import numpy as np
import pytest

from polyfleet.engine.step.plan import NO_ADAPTER, Assembler, Need, StepPlan
from polyfleet.engine.step.sequence import Sequence
from polyfleet.wire.requests import SequenceRequest
from polyfleet.wire.sampling import SamplingParams

GARBAGE = -77_777
ROOM, BLOCKS = 8, 5


def decoding(slot: int, length: int, **changes: object) -> Sequence:
    """A running sequence of which all tokens but the last are computed."""
    request = SequenceRequest(f"s{slot}", tuple(range(1, length)), generated_ids=(90 + slot,), **changes)  # type: ignore[arg-type]
    sequence = Sequence(request, 0, 0.0, longest=1000)
    sequence.place, sequence.num_computed, sequence.blocks = (slot, 1), length - 1, [slot]
    return sequence


def launched(assembler: Assembler, sequences: tuple[Sequence, ...]) -> None:
    """The plan is accepted, and its borrower has written over its arrays."""
    plan = assembler.assemble([], sequences)
    plan.numbers[:] = GARBAGE
    assembler.accepted()
    for each in sequences:
        each.plan(1, 1)


def assert_same(plan: StepPlan, anew: StepPlan) -> None:
    """Every field is, but for what was told before."""
    for field in fields(StepPlan):
        if field.name not in ("changed", "starts"):
            assert np.array_equal(getattr(plan, field.name), getattr(anew, field.name)), field.name


def make(*sequences: Sequence) -> Assembler:
    assembler = Assembler(ROOM, BLOCKS)
    for each in sequences:
        assembler.start(each.slot, each)
    return assembler


SEQUENCES = [(6, 4), (0, 9), (3, 2)]  # slots and lengths


@pytest.mark.parametrize("ahead", [False, True], ids=["drawn", "still being drawn"])
def test_sequences_that_decode_on(ahead: bool) -> None:
    sequences = tuple(decoding(slot, length, sampling=SamplingParams(temperature=0.7)) for slot, length in SEQUENCES)
    assembler = make(*sequences)
    for step in range(4):
        launched(assembler, sequences)
        if not ahead:
            for each in sequences:
                each.accept(10 * step + each.slot)
    assert_same(assembler.assemble([], sequences), make(*sequences).assemble([], list(sequences)))


def test_arrays_are_those_of_the_plan_before() -> None:
    sequences = tuple(decoding(slot, length) for slot, length in SEQUENCES)
    assembler = make(*sequences)
    launched(assembler, sequences)
    plan = assembler.assemble([], sequences)
    assembler.accepted()
    for each in sequences:
        each.plan(1, 2)
    assert assembler.assemble([], sequences) is plan


@pytest.mark.parametrize(
    ("changes", "same"), [({"logit_bias": {3: 1.0}}, True), ({"min_tokens": 5, "stop_token_ids": (4,)}, False)]
)
def test_a_masked_plan_is_kept_where_its_sequences_stay_masked(changes: dict[str, object], same: bool) -> None:
    """Bars of `min_tokens` end some day, and the needs of the plan with them."""
    sequences = (decoding(2, 5, **changes), decoding(4, 5))
    assembler = make(*sequences)
    launched(assembler, sequences)
    plan = assembler.assemble([], sequences)
    assert Need.MASKS in plan.needs
    assembler.accepted()
    draws = plan.draws()
    for each in sequences:
        each.plan(1, 2)
    again = assembler.assemble([], sequences)
    assert (again is plan) is same
    assert again.draws().positions.tolist() == (draws.positions + 1).tolist()
    assert again.draws().parameters.tolist() == draws.parameters.tolist()


def test_changes_are_told_once() -> None:
    sequences = (decoding(2, 4), decoding(5, 4))
    assembler = make(*sequences)
    launched(assembler, sequences)
    assembler.set_blocks(5, 1, (7,))
    plan = assembler.assemble([], sequences)
    assert plan.changed.tolist() == [5]
    assert plan.block_tables[5, :2].tolist() == [5, 7]
    assembler.accepted()
    for each in sequences:
        each.plan(1, 2)
    assert assembler.assemble([], sequences).changed.tolist() == []


def test_a_plan_that_was_not_accepted_is_written_again() -> None:
    sequences = (decoding(1, 6),)
    assembler = make(*sequences)
    launched(assembler, sequences)
    first = assembler.assemble([], sequences).numbers.copy()
    again = assembler.assemble([], sequences)
    assert again.numbers.tolist() == first.tolist()
    assert again.changed.tolist() == []


@pytest.mark.parametrize("what", ["fewer", "more", "a prompt", "cleared blocks"])
def test_other_steps_are_written_anew(what: str) -> None:
    sequences = (decoding(1, 6), decoding(2, 3))
    other, prompt = decoding(4, 5), Sequence(SequenceRequest("p", (1, 2, 3)), 1, 0.0, longest=1000)
    prompt.place, prompt.blocks = (7, 1), [3]
    assembler = make(*sequences, other, prompt)
    launched(assembler, sequences)
    if what == "cleared blocks":
        assembler.clear([4])
    now = {"fewer": sequences[:1], "more": (*sequences, other)}.get(what, sequences)
    plan = assembler.assemble([(prompt, 2)] if what == "a prompt" else [], now)
    lengths = [each.num_tokens for each in now] + ([2] if what == "a prompt" else [])
    assert plan.lengths.tolist() == lengths
    assert plan.cleared_blocks.tolist() == ([4] if what == "cleared blocks" else [])
    assert [end - start for start, end in pairwise(plan.row_starts.tolist())] == [1] * len(now) + [2] * (
        what == "a prompt"
    )


def test_a_step_needs_adapters_where_one_of_its_sequences_has_one() -> None:
    """Whether its rows draw or not."""
    plain, adapted = decoding(2, 5), decoding(4, 5)
    adapted.adapter = 3
    assembler = make(plain, adapted)
    assert Need.ADAPTERS not in assembler.assemble([], (plain,)).needs
    plan = assembler.assemble([], (plain, adapted))
    assert Need.ADAPTERS in plan.needs
    assert plan.adapters[plan.slots].tolist() == [NO_ADAPTER, 3]
    adapted.num_computed = 0
    plan = assembler.assemble([(adapted, 2)])
    assert not plan.num_draws
    assert plan.needs is Need.ADAPTERS
    adapted.adapter = NO_ADAPTER
    assembler.start(4, adapted)  # another sequence in its slot
    assert assembler.assemble([(adapted, 2)]).needs is Need.NOTHING

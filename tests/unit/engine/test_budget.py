"""StepBudget: how many rows fit the time of a step; what a lack of memory costs, for how long, and whom."""

import pytest
from tests.support.batching import Outcomes, assert_right, make_batcher, request, run_all

from polyfleet.engine.batching.budget import MOST_PATIENCE_STEPS, PATIENCE_STEPS, StepBudget


def good_steps_until(budget: StepBudget, most: int) -> int:
    """How many good steps it takes until steps of `most` rows are planned."""
    for step in range(100 * MOST_PATIENCE_STEPS):
        if budget.most >= most:
            return step
        budget.observe(budget.most, 0, 0.01)
    raise AssertionError("such steps are never planned again")


def fail_down_to(budget: StepBudget, most: int) -> None:
    """Memory is short until steps have as few rows as this."""
    while budget.most > most:
        assert budget.too_large(budget.most)


def test_a_lack_of_memory_that_passes_is_forgotten_soon() -> None:
    budget = StepBudget(2048)
    for _ in range(5):
        fail_down_to(budget, 1)
        assert good_steps_until(budget, 2048) <= 2 * 11 * PATIENCE_STEPS


def test_larger_steps_that_never_fit_are_tried_ever_less_often() -> None:
    budget = StepBudget(2048)
    fail_down_to(budget, 512)
    waits = []
    for _ in range(12):
        waits.append(good_steps_until(budget, 1024))
        fail_down_to(budget, 512)
    assert waits[:3] == [PATIENCE_STEPS, 2 * PATIENCE_STEPS, 4 * PATIENCE_STEPS]
    assert waits[-1] == MOST_PATIENCE_STEPS


def test_single_rows_that_fail_one_after_the_other_are_in_vain() -> None:
    budget = StepBudget(8)
    fail_down_to(budget, 1)
    assert [budget.too_large(1) for _ in range(3)] == [True, True, False]
    budget.observe(1, 0, 0.01)
    assert budget.too_large(1)


def test_sequences_that_decode_take_turns_where_a_step_has_no_room_for_all() -> None:
    for depth in (1, 2):
        batcher, executor = make_batcher(depth=depth, step_tokens=32, max_sequences=8)
        requests = [request(number, 4, 30) for number in range(6)]
        outcomes = Outcomes()
        for each in requests:
            batcher.add(each)
        while len(outcomes) < len(requests):
            outcomes.add(batcher.step())
        executor.most_rows = 4
        for _ in range(20):
            outcomes.add(batcher.step())
        lengths = [len(outcomes[each.sequence_id].token_ids) for each in requests]
        assert max(lengths) - min(lengths) <= 2
        run_all(batcher, outcomes)
        for each in requests:
            assert_right(outcomes, each)


def test_a_prompt_goes_on_beside_decodes_that_fill_what_memory_allows() -> None:
    for depth in (1, 2):
        batcher, executor = make_batcher(depth=depth, step_tokens=32, max_sequences=8)
        outcomes = Outcomes()
        batcher.add(request(1, 4, 100))
        while not outcomes:
            outcomes.add(batcher.step())
        executor.most_rows = 1
        batcher.add(request(2, 6, 3, priority=1))
        while len(outcomes) < 2:
            outcomes.add(batcher.step())
            assert len(outcomes["s1"].token_ids) < 30
        assert len(outcomes["s1"].token_ids) > 5
        run_all(batcher, outcomes)
        assert_right(outcomes, request(1, 4, 100))
        assert_right(outcomes, request(2, 6, 3))


@pytest.mark.parametrize(("row_seconds", "longest", "steps"), [(0.07, 1.2, 150), (0.003, 0.27, 32), (0.00001, 0.03, 6)])
def test_no_step_is_long_before_it_is_known_what_rows_take(row_seconds: float, longest: float, steps: int) -> None:
    budget = StepBudget(2048, 0.25)
    taken, left = [], 2400
    while left:
        rows = min(left, budget.for_prompts(0))
        taken.append(0.005 + rows * row_seconds)
        budget.observe(0, rows, taken[-1])
        left -= rows
    assert max(taken) <= longest
    assert len(taken) <= steps


def test_a_first_step_that_takes_long_for_another_reason_is_made_up_for() -> None:
    budget = StepBudget(2048, 0.1)
    for seconds in (60.0, 0.002, 0.002, 0.002, 0.002, 0.002):  # kernels are compiled for the first
        budget.observe(0, budget.for_prompts(0), seconds)
    assert budget.for_prompts(0) == 2048

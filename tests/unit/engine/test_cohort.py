"""Steps of sequences that all decode on: what they come to is known ahead, but for tokens that end one of them."""

from collections.abc import Sequence as Items
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.support.batching import Outcomes, assert_right, make_batcher, request, run_all
from tests.support.fake_executor import expected_tokens

from polyfleet.engine.batching.cohort import Cohort
from polyfleet.engine.batching.flight import with_logprobs
from polyfleet.engine.step.sequence import Sequence
from polyfleet.sampling.draw import Logprobs
from polyfleet.wire.answers import FinishReason, SampledToken

DEPTHS = pytest.mark.parametrize("depth", [1, 2, 3])
Taken = list[tuple[int, bool]]


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> Taken:
    """Of each step that found its sequences in their places, how many they were, and whether all took their tokens."""
    found: Taken = []
    take = Cohort.take

    def spied(cohort: Cohort, token_ids: Items[int], block_size: int) -> Items[Sequence] | None:
        full = take(cohort, token_ids, block_size)
        found.append((len(cohort), full is not None))
        return full

    monkeypatch.setattr(Cohort, "take", spied)
    return found


@DEPTHS
def test_a_token_that_ends_another_sequence_ends_its_own_alone(depth: int, taken: Taken) -> None:
    """Each is told to stop at a token that the others draw on their way and it does not; one at one of its own, too."""
    asked = [request(number, 3 + number, 30) for number in range(1, 5)]
    answers = [expected_tokens(each, 256)[0] for each in asked]
    for number, answer in enumerate(answers):
        others = next(each for each in answers[number - 1][8:] if each not in answer)
        asked[number] = replace(asked[number], stop_token_ids=(others, *answer[25:26] * (number == 0)))
    batcher, _ = make_batcher(depth=depth)
    for each in asked:
        batcher.add(each)
    outcomes = run_all(batcher)
    for each in asked:
        assert_right(outcomes, each)
    assert outcomes["s1"].finish_reason is FinishReason.STOP
    assert {(4, True), (4, False)} <= set(taken[5:]), "all take their tokens at once but where one may end"
    assert batcher.counters.generated_tokens == sum(len(each.token_ids) for each in outcomes.values())


@DEPTHS
def test_full_blocks_are_found_again_whoever_decodes_beside_them(depth: int, taken: Taken) -> None:
    """Blocks of 4 tokens fill in different steps, and their chains are those of the tokens."""
    asked = [request(number, 3 + number, 21) for number in range(4)]
    batcher, _ = make_batcher(depth=depth)
    for each in asked:
        batcher.add(each)
    outcomes = run_all(batcher)
    assert (4, True) in taken
    for each in asked:
        ids = (*each.prompt_ids, *outcomes[each.sequence_id].token_ids)
        again = replace(each, sequence_id=f"{each.sequence_id}-again", prompt_ids=ids, max_tokens=1)
        batcher.add(again)
        found = run_all(batcher)[again.sequence_id]
        assert found.cached_tokens == (len(ids) - 1) // 4 * 4


@DEPTHS
def test_who_is_cancelled_on_the_way_takes_no_token(depth: int, taken: Taken) -> None:
    batcher, _ = make_batcher(depth=depth)
    for number in range(3):
        batcher.add(request(number, 5, 30))
    outcomes = Outcomes()
    for _ in range(8):
        outcomes.add(batcher.step())
    batcher.cancel("s1")
    had = len(outcomes["s1"].token_ids)
    run_all(batcher, outcomes)
    assert len(outcomes["s1"].token_ids) == had
    for number in (0, 2):
        assert_right(outcomes, request(number, 5, 30))
    assert {count for count, all_at_once in taken if all_at_once} == {2, 3}


def test_each_draw_has_as_many_alternatives_as_it_asks_for() -> None:
    logprobs = Logprobs(np.array([-0.5, -1.0, -2.0]), np.array([[7, 8], [9, 1], [3, 4]]), np.array([[-0.5, -3.0]] * 3))
    wanted: list[Any] = [2, None, 0]
    assert with_logprobs([7, 9, 5], logprobs, wanted) == [
        SampledToken(7, -0.5, (7, 8), (-0.5, -3.0)),
        SampledToken(9),
        SampledToken(5, -2.0, (), ()),
    ]

"""Masks of allowed tokens while steps are under way, and masks that fail."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from tests.support.batching import Outcomes, assert_right, make_batcher, request, run_all
from tests.support.fake_executor import VOCABULARY, expected_tokens
from tests.support.masking import packed

from polyfleet.sampling.arrays import Bools, Int32s
from polyfleet.sampling.grammar import GrammarError
from polyfleet.wire.answers import INTERNAL, INVALID_ARGUMENT

DEPTHS = pytest.mark.parametrize("depth", [1, 2, 3])


def odd(generated_ids: Sequence[int]) -> Bools:
    """Which tokens are odd."""
    allowed: Bools = np.arange(VOCABULARY) % 2 == 1
    return allowed


class Odd:
    """Allows odd tokens, and counts how often it was asked."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    ready = True

    def fill(self, generated_ids: Sequence[int], bits: Int32s) -> None:
        self.asked.append(len(generated_ids))
        bits[:] = packed(odd(generated_ids))


class Failing(Odd):
    """Has nothing to say about the third token: raises, or leaves only these words of bits."""

    def __init__(self, outcome: Any) -> None:
        super().__init__()
        self._outcome = outcome

    def fill(self, generated_ids: Sequence[int], bits: Int32s) -> None:
        super().fill(generated_ids, bits)
        if len(generated_ids) < 2:
            return
        if isinstance(self._outcome, Exception):
            raise self._outcome
        bits[:] = self._outcome


@DEPTHS
def test_masks_arrive_when_the_tokens_before_are_known(depth: int) -> None:
    batcher, executor = make_batcher(depth=depth, max_sequences=4, step_tokens=16)
    mask = Odd()
    masked = request(1, 5, 8)
    batcher.add(masked, mask)
    batcher.add(request(2, 7, 12))
    outcomes = run_all(batcher)
    assert outcomes["s1"].token_ids == expected_tokens(masked, 256, allowed=odd)[0]
    assert all(each % 2 for each in outcomes["s1"].token_ids)
    assert mask.asked == list(range(8))
    assert_right(outcomes, request(2, 7, 12))
    assert [each is None for each in executor.masks].count(False) == 8


def test_a_mask_whose_sequence_has_ended_is_not_asked() -> None:
    batcher, executor = make_batcher(depth=2)
    mask = Odd()
    stop = expected_tokens(request(1, 5, 9), 256, allowed=odd)[0][2]
    batcher.add(request(1, 5, 9, stop_token_ids=(stop,)), mask)
    run_all(batcher)
    assert mask.asked == [0, 1, 2]
    assert executor.masks[-1] is None


@DEPTHS
@pytest.mark.parametrize(
    ("outcome", "reason"),
    [
        (KeyError("state"), "KeyError: 'state'"),
        ([0, 0, 0, 0], "it leaves no token"),
        ([0, 0, 0, -2], "it leaves no token"),  # none but those behind the vocabulary's 97
        ([-1, -1], "ValueError: could not broadcast input array from shape (2,) into shape (4,)"),
    ],
)
def test_a_mask_that_fails_fails_its_sequence_alone(depth: int, outcome: object, reason: str) -> None:
    batcher, _ = make_batcher(depth=depth)
    batcher.add(request(1), Failing(outcome))
    batcher.add(request(2), Odd())
    batcher.add(request(3))
    outcomes = run_all(batcher)
    tokens = expected_tokens(request(1), 256, allowed=odd)[0][:2]
    assert outcomes["s1"].token_ids == tokens
    assert outcomes["s1"].error == f"the mask of allowed tokens failed: {reason}"
    assert outcomes["s2"].token_ids == expected_tokens(request(2), 256, allowed=odd)[0]
    assert_right(outcomes, request(3))


@DEPTHS
@pytest.mark.parametrize("error", [GrammarError("the grammar can't be gone on with: it is too large"), OSError("gone")])
def test_a_grammar_that_gives_up_is_its_callers_and_no_fault_of_the_engine(depth: int, error: Exception) -> None:
    batcher, _ = make_batcher(depth=depth)
    batcher.add(request(1), Failing(error))
    ends = []
    while batcher.has_work:
        ends += [update for update in batcher.step().updates if update.error]
    callers = isinstance(error, GrammarError)
    assert [(each.code, each.broken) for each in ends] == [(INVALID_ARGUMENT, False) if callers else (INTERNAL, True)]
    assert not callers or ends[0].error == str(error)


def test_a_sequence_whose_mask_is_not_ready_lets_others_go_on() -> None:
    batcher, _ = make_batcher()
    mask = Odd()
    mask.ready = False
    masked = request(1, 5, 8)
    batcher.add(masked, mask)
    batcher.add(request(2, 7, 12))
    outcomes = Outcomes()
    for _ in range(20):
        outcomes.add(batcher.step())
    assert_right(outcomes, request(2, 7, 12))
    assert mask.asked == []
    mask.ready = True
    assert run_all(batcher, outcomes)["s1"].token_ids == expected_tokens(masked, 256, allowed=odd)[0]

"""Masks of allowed tokens while steps are under way, and masks that fail."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from tests.support.batching import assert_right, make_batcher, request, run_all
from tests.support.fake_executor import VOCABULARY, expected_tokens

from polyfleet.sampling.draw import Bools

DEPTHS = pytest.mark.parametrize("depth", [1, 2, 3])


class Odd:
    """Allows odd tokens, and counts how often it was asked."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def allowed(self, generated_ids: Sequence[int]) -> Bools:
        self.asked.append(len(generated_ids))
        allowed: Bools = np.arange(VOCABULARY) % 2 == 1
        return allowed


class Failing(Odd):
    """Has nothing to say about the third token: raises, or gives what is no mask."""

    def __init__(self, outcome: Any) -> None:
        super().__init__()
        self._outcome = outcome

    def allowed(self, generated_ids: Sequence[int]) -> Bools:
        if len(generated_ids) < 2:
            return super().allowed(generated_ids)
        if isinstance(self._outcome, Exception):
            raise self._outcome
        return self._outcome  # type: ignore[no-any-return]


@DEPTHS
def test_masks_arrive_when_the_tokens_before_are_known(depth: int) -> None:
    batcher, executor = make_batcher(depth=depth, max_sequences=4, step_tokens=16)
    mask = Odd()
    masked = request(1, 5, 8)
    batcher.add(masked, mask)
    batcher.add(request(2, 7, 12))
    outcomes = run_all(batcher)
    assert outcomes["s1"].token_ids == expected_tokens(masked, 256, allowed=Odd().allowed)[0]
    assert all(each % 2 for each in outcomes["s1"].token_ids)
    assert mask.asked == list(range(8))
    assert_right(outcomes, request(2, 7, 12))
    assert [each is None for each in executor.masks].count(False) == 8


def test_a_mask_whose_sequence_has_ended_is_not_asked() -> None:
    batcher, executor = make_batcher(depth=2)
    mask = Odd()
    stop = expected_tokens(request(1, 5, 9), 256, allowed=Odd().allowed)[0][2]
    batcher.add(request(1, 5, 9, stop_token_ids=(stop,)), mask)
    run_all(batcher)
    assert mask.asked == [0, 1, 2]
    assert executor.masks[-1] is None


@DEPTHS
@pytest.mark.parametrize(
    ("outcome", "reason"),
    [
        (KeyError("state"), "KeyError: 'state'"),
        (np.zeros(VOCABULARY, dtype=bool), "it leaves no token"),
        (np.ones(VOCABULARY - 1, dtype=bool), f"it speaks of {VOCABULARY - 1} tokens, not {VOCABULARY}"),
        ([], "it is no row of truth values, but float64 [0]"),
        (np.ones(VOCABULARY), f"it is no row of truth values, but float64 [{VOCABULARY}]"),
        (np.ones((1, VOCABULARY), dtype=bool), f"it is no row of truth values, but bool [1, {VOCABULARY}]"),
        (None, "it is no row of truth values, but object []"),
    ],
)
def test_a_mask_that_fails_fails_its_sequence_alone(depth: int, outcome: object, reason: str) -> None:
    batcher, _ = make_batcher(depth=depth)
    batcher.add(request(1), Failing(outcome))
    batcher.add(request(2), Odd())
    batcher.add(request(3))
    outcomes = run_all(batcher)
    tokens = expected_tokens(request(1), 256, allowed=Odd().allowed)[0][:2]
    assert outcomes["s1"].token_ids == tokens
    assert outcomes["s1"].error == f"the mask of allowed tokens failed: {reason}"
    assert outcomes["s2"].token_ids == expected_tokens(request(2), 256, allowed=Odd().allowed)[0]
    assert_right(outcomes, request(3))

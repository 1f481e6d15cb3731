"""The tolerance of DESIGN: what counts as the same continuation and what does not."""

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.support.divergence import assert_same_tokens, reachable

from polyfleet.sampling.philox import uniforms
from polyfleet.wire.sampling import GREEDY, SamplingParams

ROW: NDArray[np.float64] = np.log(np.array([0.5, 0.3, 0.1999, 0.0001]))


def logits(token_ids: list[int]) -> NDArray[np.float64]:
    return ROW


def test_equal_continuations_are_the_same() -> None:
    assert assert_same_tokens(logits, [1], GREEDY, [0, 2, 3], [0, 2, 3], 0.0) == 3
    with pytest.raises(AssertionError, match="behind the other's end"):
        assert_same_tokens(logits, [1], GREEDY, [0, 2], [0, 2, 3], 1.0)


def test_greedy_may_part_at_a_tie_only() -> None:
    margin = np.log(0.5 / 0.3)
    assert assert_same_tokens(logits, [1], GREEDY, [0, 0], [0, 1], margin / 2 + 1e-9) == 1
    with pytest.raises(AssertionError, match="token 1 at 1 is out of reach"):
        assert_same_tokens(logits, [1], GREEDY, [0, 0], [0, 1], margin / 2 - 1e-9)


@pytest.mark.parametrize(
    ("uniform", "wanted"),
    [(0.0, {0}), (0.4999, {0, 1}), (0.5001, {0, 1}), (0.6, {1}), (0.8, {1, 2}), (0.9, {2}), (0.9999, {2, 3})],
)
def test_draws_may_part_near_an_edge_only(uniform: float, wanted: set[int]) -> None:
    assert {token_id for token_id in range(4) if reachable(ROW, token_id, 1.0, uniform, 1e-4)} == wanted


def test_tokens_of_one_rank_may_change_places() -> None:
    row = np.log(np.array([0.4, 0.4, 0.2]))
    assert {token_id for token_id in range(3) if reachable(row, token_id, 1.0, 0.1, 1e-6)} == {0, 1}
    assert {token_id for token_id in range(3) if reachable(row, token_id, 1.0, 0.9, 1e-6)} == {2}


def test_a_draw_is_judged_by_its_own_uniform() -> None:
    params = SamplingParams(seed=5)
    uniform = float(uniforms([5], [2], [4])[0])
    right = int((ROW.argsort()[::-1])[(np.exp(ROW).cumsum() <= uniform).sum()])
    wrong = (right + 2) % 4
    with pytest.raises(AssertionError, match="out of reach"):
        assert_same_tokens(logits, [1, 2, 3], params, [0, right], [0, wrong], 1e-6, choice=2)

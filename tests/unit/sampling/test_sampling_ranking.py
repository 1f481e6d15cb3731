"""Whole rows ranked without sorting ids, against the oracle that sorts everything in float64."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support import sampling_oracle

from polyfleet.sampling.ranking import BLOCK, Ranking
from polyfleet.wire.sampling import SamplingParams

EDGE = 1e-6  # draws nearer than this to an edge of the cumulated distribution may fall on either side


def oracle(row: np.ndarray, params: SamplingParams, uniform: float) -> tuple[int, float]:
    kept, probabilities = sampling_oracle.distribution(row.astype(np.float64), params)
    return sampling_oracle.draw(kept, probabilities, uniform)


def pick(row: np.ndarray, params: SamplingParams, uniform: float) -> int:
    top_k = params.top_k or len(row)
    return Ranking(row, params.temperature).pick(
        top_k, params.top_p if params.top_p < 1 else np.inf, params.min_p, uniform
    )


@pytest.mark.parametrize("size", [1, 2, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK, 5000])
@pytest.mark.parametrize("spread", [0.0, 0.3, 3.0, 30.0])
def test_draws_equal_the_oracle(size: int, spread: float) -> None:
    source = random.Random(size)
    row = (spread * np.random.default_rng(size).standard_normal(size)).astype(np.float32)
    compared = 0
    for _ in range(40):
        params = SamplingParams(
            temperature=source.choice([0.2, 1.0, 2.0]),
            top_k=source.choice([0, 0, 1, 7, BLOCK, 2 * BLOCK + 3]),
            top_p=source.choice([1.0, 1.0, 0.98713, 0.51237, 1e-6]),
            min_p=source.choice([0.0, 0.0, 0.01, 1.0]),
        )
        uniform = source.random()
        expected, distance = oracle(row, params, uniform)
        if distance > EDGE:
            assert pick(row, params, uniform) == expected
            compared += 1
    assert compared > 25


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=40), st.floats(0, 1, exclude_max=True))
def test_equal_logits_are_ranked_by_id(levels: list[int], uniform: float) -> None:
    row = np.array(levels, dtype=np.float32)
    expected, distance = oracle(row, SamplingParams(), uniform)
    if distance > EDGE:
        assert pick(row, SamplingParams(), uniform) == expected


def test_zeros_of_both_signs_are_equal() -> None:
    row = np.array([-0.0, 0.0, -0.0, 0.0], dtype=np.float32)
    assert [pick(row, SamplingParams(), uniform) for uniform in (0.1, 0.3, 0.6, 0.9)] == [0, 1, 2, 3]


def test_a_tiny_temperature_is_greedy() -> None:
    row = np.array([1.0, 3e38, -3e38], dtype=np.float32)
    assert Ranking(row, 1e-30).pick(3, np.inf, 0.0, 0.999999) == 1

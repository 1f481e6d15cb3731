"""Pooling of hidden states: sums, last rows, and rows that are not finite, apart for each sequence."""

import numpy as np
import torch
from numpy.typing import NDArray

from polyfleet.engine.pooling import pool


def numbers(*values: int) -> NDArray[np.int32]:
    return np.array(values, dtype=np.int32)


def test_sums_and_last_rows() -> None:
    hidden = torch.tensor([[9.0, 9], [1, 2], [3, -5], [4, 4], [0.5, 0]])
    results, finite = pool(hidden, numbers(0, 1, 3, 5), numbers(1, 2), numbers(0, 1))
    assert results.tolist() == [[4, -3], [0.5, 0]]
    assert finite.tolist() == [True, True]


def test_sums_are_taken_in_double_precision_on_the_host() -> None:
    hidden = torch.tensor([[2.0**30], [1.0], [-(2.0**30)]], dtype=torch.float32)
    results, _ = pool(hidden, numbers(0, 3), numbers(0), numbers(0))
    assert results.dtype == torch.float64
    assert results.tolist() == [[1.0]]


def test_only_the_sequence_that_is_not_finite_is_told() -> None:
    nan, inf = float("nan"), float("inf")
    hidden = torch.tensor([[nan, 2], [3, -5], [1, 1], [inf, 0], [2, 2]])
    results, finite = pool(hidden, numbers(0, 2, 3, 5), numbers(0, 1, 2), numbers(0, 0, 1))
    assert finite.tolist() == [False, True, True]
    assert results[1].tolist() == [1, 1]
    _, finite = pool(hidden, numbers(0, 2, 4), numbers(0, 1), numbers(1, 0))
    assert finite.tolist() == [True, False]


def test_nothing_to_pool() -> None:
    results, finite = pool(torch.ones(2, 3), numbers(0, 2), numbers(), numbers())
    assert results.shape == (0, 3)
    assert finite.shape == (0,)

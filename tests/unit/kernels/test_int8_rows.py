"""Rows of int8 codes: how near numbers are, that they come back bit by bit, and that numpy's are torch's and C++'s."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from numpy.typing import NDArray
from tests.support.cpu_graphs import Params, Rig, available_sets, needs_library
from tests.unit.kernels.cpu.test_cpu_attention import record

from polyfleet.kernels.cached import CODES, loaded, stored
from polyfleet.kernels.cpu.blocks import read_blocks
from polyfleet.kernels.int8_rows import MOST, TINY, numbers_of, rows_of, scales_of

Floats = NDArray[np.float32]
HELD = torch.empty(0, dtype=CODES)
NUMBERS = arrays(
    np.float32, array_shapes(min_dims=2, max_dims=3, max_side=9), elements=st.floats(-(2.0**99), 2.0**99, width=32)
)


def coded(numbers: Floats) -> NDArray[np.int8]:
    """By torch."""
    rows: NDArray[np.int8] = stored(torch.from_numpy(numbers), HELD).numpy()
    return rows


@settings(deadline=None)
@given(NUMBERS)
def test_numbers_are_rounded_to_the_nearest_code(numbers: Floats) -> None:
    """Of a row whose largest magnitude is worth 127: a scale is within 1/256 of a 127th of it."""
    rows = rows_of(numbers)
    found, peaks = numbers_of(rows).astype(np.float64), np.abs(numbers).max(-1, keepdims=True).astype(np.float64)
    assert (np.abs(rows[..., :-2].astype(int)) <= MOST).all()
    assert (np.abs(found - numbers) <= peaks / MOST * 0.502 + TINY).all()


@settings(deadline=None)
@given(NUMBERS)
def test_what_rows_stand_for_comes_to_the_same_rows(numbers: Floats) -> None:
    rows = rows_of(numbers)
    assert np.array_equal(rows_of(numbers_of(rows)), rows)


@settings(deadline=None)
@given(NUMBERS)
def test_torch_makes_the_same_rows(numbers: Floats) -> None:
    rows = rows_of(numbers)
    assert np.array_equal(coded(numbers), rows)
    assert np.array_equal(loaded(torch.from_numpy(rows), torch.float32).numpy(), numbers_of(rows))


def test_the_largest_of_any_row_is_a_whole_127() -> None:
    peaks = np.geomspace(1e-29, 1e38, 100_001, dtype=np.float32)[:, None]
    rows = rows_of(peaks * np.array([1, -1, 0.25], dtype=np.float32))
    assert np.array_equal(rows[:, :2], np.broadcast_to(np.array([MOST, -MOST], np.int8), (len(peaks), 2)))


def test_rows_of_nothing_and_of_what_is_no_number() -> None:
    given_ = np.array([[0, 0], [TINY / 2, -TINY / 2], [np.nan, 1], [np.inf, 1]], dtype=np.float32)
    assert np.array_equal(rows_of(given_[:2]), np.zeros((2, 4), np.int8))
    assert np.array_equal(coded(given_)[:2], np.zeros((2, 4), np.int8))
    assert not loaded(torch.from_numpy(coded(given_)[2:]), torch.float32).isfinite().any()
    assert (scales_of(coded(given_)[2:]) >= 0x7F80).all()


@needs_library
@pytest.mark.parametrize("instruction_set", available_sets())
@pytest.mark.parametrize("dim", [6, 16, 20, 64])
def test_the_cpu_library_makes_the_same_rows(instruction_set: str, dim: int) -> None:
    """Keys do not turn at position 0, where each sequence has its one row."""
    params, count = Params(2, 2, dim), 60
    rng = np.random.default_rng(dim)
    rows = (
        rng.standard_normal((count, 6 * dim), dtype=np.float32)
        * np.geomspace(1e-32, 1e30, count, dtype=np.float32)[:, None]
    )
    rows[7, -dim:] = 0

    rig = Rig(rows, record, instruction_set=instruction_set, params=params, codes=True, num_blocks=count, block_size=5)
    rig.run([([number], 0, [number]) for number in range(count)])
    (found,) = read_blocks(rig.engine, [range(count)], [False])
    given_ = rows.reshape(count, 3, 2, dim)[:, 1:].swapaxes(0, 1)
    assert np.array_equal(found[:, ::5], rows_of(given_))

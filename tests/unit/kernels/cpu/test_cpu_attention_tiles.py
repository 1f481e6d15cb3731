"""Attention of wide rows, on emulated tiles, against attention as it is everywhere else."""

import ctypes
import platform
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from polyfleet.kernels.int8_rows import rows_of, scales_of

Floats = NDArray[np.float32]
ROOT = Path(__file__).parents[4]
CPU = ROOT / "workers/polyfleet/kernels/cpu"
COMPILER = shutil.which("c++") or shutil.which("g++")

pytestmark = [
    pytest.mark.skipif(COMPILER is None, reason="there is no C++ compiler"),
    pytest.mark.skipif(platform.machine() != "x86_64", reason="tiles are x86-64's"),
]


@pytest.fixture(scope="module")
def attention(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """Compiled without AVX2, for any machine."""
    library = tmp_path_factory.mktemp("attention") / "attention.so"
    source = ROOT / "tests/support/attention_tiles.cpp"
    command = [str(COMPILER), "-std=c++17", "-O1", "-fPIC", "-shared", f"-I{CPU}", str(source), "-o", str(library)]
    subprocess.run(command, check=True)
    return ctypes.CDLL(str(library))


def aligned(numbers: int) -> Floats:
    """Floats at a multiple of 64 bytes, none of them finite."""
    memory = np.full(numbers + 16, np.nan, dtype=np.float32)
    skip = -(memory.ctypes.data // 4) % 16
    return memory[skip : skip + numbers]


def both(
    attention: ctypes.CDLL,
    shape: tuple[int, int, int, int],
    place: tuple[int, int, int],
    partial: bool,
    coarse: bool,
    codes: bool = False,
) -> tuple[Floats, Floats]:
    """Results of both ways; `coarse`: numbers that bfloat16 holds exactly, the same score everywhere."""
    rows, heads, dim, block = shape
    rng = np.random.default_rng(rows + heads + dim + sum(place))
    blocks = place[0] // block + rows // block + 2
    table = rng.permutation(blocks).astype(np.int32)
    query = (
        np.zeros((rows, heads * dim), np.float32) if coarse else rng.standard_normal((rows, heads * dim), np.float32)
    )
    keys: NDArray[Any] = rng.standard_normal((blocks, dim, block), np.float32).astype(np.float16)
    values: NDArray[Any] = rng.standard_normal((blocks, block, dim), np.float32).astype(np.float16)
    if coarse:
        values = rng.integers(-128, 129, values.shape).astype(np.float16)
    if codes:
        keys, values = coded(keys.swapaxes(1, 2), keys=True), coded(values, keys=False)
    vectors = rows * heads
    size = attention.partial_floats(dim, vectors) if partial else vectors * dim
    plain, wide = np.empty(size, np.float32), np.empty(size, np.float32)
    scratch = aligned(attention.scratch_floats(dim, 16 * heads))
    attention.attend_both(
        *shape,
        *place,
        *(each.ctypes.data_as(ctypes.c_void_p) for each in (query, keys, values)),
        int(codes),
        *(each.ctypes.data_as(ctypes.c_void_p) for each in (table, scratch)),
        int(partial),
        plain.ctypes.data_as(ctypes.c_void_p),
        wide.ctypes.data_as(ctypes.c_void_p),
    )
    if partial:
        return of_part(plain, vectors, dim), of_part(wide, vectors, dim)
    return plain.reshape(vectors, dim), wide.reshape(vectors, dim)


def coded(tokens: NDArray[np.float16], *, keys: bool) -> NDArray[np.int8]:
    """Keys or values [blocks, positions, dim] as codes lie in blocks, their scales behind them."""
    rows = rows_of(tokens.astype(np.float32))
    codes, scales = rows[..., :-2].swapaxes(1, 2) if keys else rows[..., :-2], scales_of(rows)
    parts = [np.ascontiguousarray(each).view(np.int8).reshape(len(rows), -1) for each in (codes, scales)]
    return np.concatenate(parts, axis=1)


def of_part(softmax: Floats, vectors: int, dim: int) -> Floats:
    """Largest score, sum of weights and weighted values [vectors, 2 + dim] of a part."""
    padded = -(-vectors // 16) * 16
    sums, peak, mass = np.split(softmax, (len(softmax) - 2 * padded, len(softmax) - padded))
    return np.concatenate(
        (peak[:vectors, None], mass[:vectors, None], sums.reshape(padded, -1)[:vectors, :dim]), axis=1
    )


@pytest.mark.parametrize("codes", [False, True])
@pytest.mark.parametrize("partial", [False, True])
@pytest.mark.parametrize("shape", [(16, 3, 64, 16), (16, 1, 96, 32), (7, 3, 128, 16), (6, 5, 32, 64)])
@pytest.mark.parametrize("place", [(0, 0, 0), (17, 0, 0), (80, 0, 0), (300, 128, 0), (300, 64, 192)])
def test_wide_attention_is_attention(
    attention: ctypes.CDLL, shape: tuple[int, int, int, int], place: tuple[int, int, int], partial: bool, codes: bool
) -> None:
    """`place` is position, begin and end; end 0 is the last row's."""
    rows = shape[0]
    ended = (place[0], place[1], place[2] or place[0] + rows)
    plain, wide = both(attention, shape, ended, partial, coarse=False, codes=codes)
    if partial:
        peak, mass = plain[:, 0], plain[:, 1]
        np.testing.assert_allclose(wide[:, 0], peak, atol=0.05)
        np.testing.assert_allclose(wide[:, 1] * 2.0 ** (wide[:, 0] - peak), mass, rtol=0.02)
        plain, wide = plain[:, 2:] / mass[:, None], wide[:, 2:] / wide[:, 1:2]
    assert np.abs(wide - plain).max() < 0.03
    assert np.linalg.norm(wide - plain) < 0.01 * np.linalg.norm(plain)


@pytest.mark.parametrize("position", [0, 15, 112])
def test_numbers_that_bfloat16_holds_give_the_same(attention: ctypes.CDLL, position: int) -> None:
    plain, wide = both(attention, (16, 3, 64, 16), (position, 0, position + 16), False, coarse=True)
    np.testing.assert_allclose(wide, plain, rtol=1e-5, atol=1e-4)

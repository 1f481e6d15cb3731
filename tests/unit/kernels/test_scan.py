"""Scan: the CPU library and numpy see the same bits, wherever numbers lie."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from polyfleet.kernels import scan as module
from polyfleet.kernels.cpu import library
from polyfleet.kernels.scan import ROW_BYTES, scan

SIZES = st.sampled_from([2, 4])


@pytest.fixture(params=["library", "numpy"], scope="module")
def way(request: pytest.FixtureRequest) -> Iterator[None]:
    """Both ways to see numbers."""
    if request.param == "library":
        if not library.PATH.exists():
            pytest.skip("the CPU library was not built")
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_compiled", lambda: None)
        yield


@settings(max_examples=60, deadline=None)
@given(SIZES, st.integers(0, 3 * ROW_BYTES), st.integers(0, 7), st.integers(0, 2**32 - 1))
def test_sums_and_magnitude_are_exact(way: None, size: int, count: int, skipped: int, seed: int) -> None:
    data = np.random.default_rng(seed).bytes(skipped + count * size)
    given_numbers, copy = np.frombuffer(data, f"<u{size}", count, skipped), np.full(count * size + 1, 0xFF, np.uint8)
    found = scan(given_numbers, sums=True)
    assert scan(given_numbers, into=copy[:-1]).largest == found.largest
    assert copy.tobytes() == data[skipped:] + b"\xff"
    rows = [data[at : at + ROW_BYTES] for at in range(skipped, len(data) - ROW_BYTES + 1, ROW_BYTES)]
    words = [[int.from_bytes(row[at : at + 8], "little") for at in range(0, ROW_BYTES, 8)] for row in rows]
    assert found.sums.tolist() == [sum(each) % 2**64 for each in words]
    numbers = [int.from_bytes(data[at : at + size], "little") for at in range(skipped, len(data), size)]
    assert found.largest == max((each % (1 << 8 * size - 1) for each in numbers), default=0)


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan, -np.nan])
@pytest.mark.parametrize(("dtype", "infinity"), [(np.float16, 0x7C00), (np.float32, 0x7F80_0000)])
def test_what_is_not_finite_is_beyond_all_that_is(way: None, bad: float, dtype: type, infinity: int) -> None:
    numbers: NDArray[Any] = np.full((3, 1001), np.finfo(dtype).min, dtype)
    assert scan(numbers).largest == infinity - 1
    numbers[2, 1000] = bad
    assert scan(numbers).largest >= infinity


def test_other_numbers_are_refused(way: None) -> None:
    with pytest.raises(ValueError, match="numbers of 8 bytes can't be scanned"):
        scan(np.zeros(4))
    with pytest.raises(ValueError, match="16 bytes can't be copied to 15"):
        scan(np.zeros(4, np.float32), into=np.zeros(15, np.uint8))

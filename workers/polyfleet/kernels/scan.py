"""Scan: numbers in memory seen at its speed: what rows of bytes add up to, and the largest magnitude. Pure.

By the CPU library where it is, in one look and without Python's lock; else by numpy, to the same bits.
"""

import ctypes
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from polyfleet.kernels.cpu import library

ROW_BYTES = 4096  # SCAN_ROW of kernels/cpu/kernels.h
_PART_BYTES = 1 << 18  # that numpy looks at twice: a part of a CPU core's cache


class Scan(NamedTuple):
    """What a look at numbers has found."""

    largest: int  # magnitude, as bits, which are in the order of magnitudes: infinity's and NaNs' come last
    sums: NDArray[np.uint64]  # of each whole ROW_BYTES the sum of its 64-bit words, modulo 2^64


def scan(numbers: NDArray[Any], *, sums: bool = False, into: NDArray[np.uint8] | None = None) -> Scan:
    """Look at numbers of 2 or 4 bytes, of any shape; `sums` only where they are asked for. ValueError for others.

    `into`: as many bytes, contiguous, to which they are copied; what is looked at is the copy.
    """
    if (size := numbers.itemsize) not in (2, 4):
        raise ValueError(f"numbers of {size} bytes can't be scanned")
    flat = numbers.reshape(-1).view(np.uint8)
    if into is not None and into.shape != flat.shape:
        raise ValueError(f"{flat.nbytes} bytes can't be copied to {into.nbytes}")
    found = np.empty(flat.nbytes // ROW_BYTES if sums else 0, np.uint64)
    if (compiled := _compiled()) is not None:
        copy = None if into is None else _address(into)
        return Scan(compiled(_address(flat), flat.nbytes, size, _address(found) if sums else None, copy), found)
    if into is not None:
        np.copyto(into, flat)
        flat = into
    return Scan(_largest(flat, size), _row_sums(flat) if sums else found)


def _row_sums(flat: NDArray[np.uint8]) -> NDArray[np.uint64]:
    whole = flat[: flat.nbytes // ROW_BYTES * ROW_BYTES].view("<u8").reshape(-1, ROW_BYTES // 8)
    return np.asarray(whole.sum(axis=1, dtype=np.uint64))


@lru_cache(maxsize=1)
def _compiled() -> Callable[..., int] | None:
    try:
        return library.load().pf_scan
    except library.LibraryUnavailable:
        return None


def _address(array: NDArray[Any]) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.__array_interface__["data"][0])


def _largest(flat: NDArray[np.uint8], number_bytes: int) -> int:
    """Of positive numbers and of negative ones, while both are in the CPU's cache."""
    magnitude, most = (1 << (8 * number_bytes - 1)) - 1, 0
    for at in range(0, flat.nbytes, _PART_BYTES):
        part = flat[at : at + _PART_BYTES]
        positive, negative = (part.view(f"<{kind}{number_bytes}").max() for kind in "iu")
        most = max(most, int(positive), int(negative) & magnitude)
    return most

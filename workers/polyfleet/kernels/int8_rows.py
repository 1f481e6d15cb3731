"""Keys and values in 8 bits: a row is as many codes as it has numbers, and behind them the scale that they count times.

The largest magnitude of a row becomes the code 127 or -127. A scale is a bfloat16: it has float32's range, and so few
digits that codes times it are exact in float32, and come to the same codes and scale again. Pure, in numpy; torch's and
the CPU library's rows are the same, bit by bit.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

SCALE_BYTES = 2  # of a row, behind its codes
MOST = 127  # of codes
TINY = 1e-30  # a row whose numbers are no larger is 0

Array = NDArray[Any]


def rows_of(numbers: Array) -> Array:
    """Rows [..., width + SCALE_BYTES] int8 of finite numbers [..., width] in float32."""
    peaks = np.abs(numbers).max(axis=-1, keepdims=True, initial=0)
    scales = np.where(peaks > TINY, to_bfloat16(peaks / np.float32(MOST)), np.uint16(0)).astype("<u2")
    divisors = np.where(scales > 0, from_bfloat16(scales), np.float32(np.inf))
    codes = np.rint(numbers / divisors).astype(np.int8)
    rows: Array = np.concatenate((codes, scales.view(np.int8)), axis=-1)
    return rows


def numbers_of(rows: Array) -> Array:
    """The numbers that rows stand for, in float32."""
    result: Array = rows[..., :-SCALE_BYTES].astype("<f4") * from_bfloat16(scales_of(rows))
    return result


def scales_of(rows: Array) -> Array:
    """The bits of rows' scales [..., 1], uint16; those of finite ones that are not negative are less than 0x7F80."""
    bits: Array = np.ascontiguousarray(rows[..., -SCALE_BYTES:]).view("<u2")
    return bits


def to_bfloat16(numbers: Array) -> Array:
    """The bits of float32 numbers, rounded to the nearest bfloat16, ties to even."""
    bits = np.ascontiguousarray(numbers, dtype="<f4").view("<u4")
    rounded: Array = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype("<u2")
    return rounded


def from_bfloat16(bits: Array) -> Array:
    """The numbers in float32."""
    numbers: Array = (bits.astype("<u4") << 16).view("<f4")
    return numbers

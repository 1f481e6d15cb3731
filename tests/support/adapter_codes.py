"""Adapters' matrices read back from what the CPU library is given, as abi.h states their layout."""

import numpy as np
from numpy.typing import NDArray

GROUP, SCALES = 16, 32  # rows, and bytes of their scales

Doubles = NDArray[np.float64]


def decoded(packed: NDArray[np.uint8], shape: tuple[int, ...], bits: int) -> Doubles:
    """The numbers, of that shape."""
    rows, columns = shape
    groups = packed.reshape(-(-rows // GROUP), -1)
    bfloats = np.ascontiguousarray(groups[:, -SCALES:]).view(np.uint16)
    scales = (bfloats.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    numbers = {16: _halves, 8: _eights, 4: _fours}[bits](np.ascontiguousarray(groups[:, :-SCALES]), columns)
    result: Doubles = (numbers * scales[..., None]).reshape(-1, columns)[:rows]
    return result


def _halves(groups: NDArray[np.uint8], columns: int) -> Doubles:
    numbers: Doubles = groups.view(np.float16).astype(np.float64).reshape(-1, columns, GROUP).transpose(0, 2, 1)
    return numbers


def _eights(groups: NDArray[np.uint8], columns: int) -> Doubles:
    row, column = np.arange(GROUP)[:, None], np.arange(columns)[None, :]
    return groups[:, column // 4 * 64 + row * 4 + column % 4].astype(np.float64) - 128


def _fours(groups: NDArray[np.uint8], columns: int) -> Doubles:
    row, column = np.arange(GROUP)[:, None], np.arange(columns)[None, :]
    both = groups[:, column // 8 * 64 + row * 4 + column % 4]
    return (both >> (column // 4 % 2 * 4).astype(np.uint8) & 15).astype(np.float64) - 8

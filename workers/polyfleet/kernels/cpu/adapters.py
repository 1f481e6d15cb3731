"""An adapter's matrices as the CPU library reads them: see PfLowRank of abi.h. Pure."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from polyfleet.kernels.cpu.stages import GROUP

LARGEST_CODE = 127
ZERO = 128  # what a code of 0 is written as
QUAD = 4  # columns of codes that lie together


def pack_rows(matrix: Tensor, *, coarse: bool) -> tuple[NDArray[Any], NDArray[np.float32]]:
    """Codes [groups, columns / 4, 16, 4] where `coarse`, else halves [groups, columns, 16], and the scale of each row.

    A row's largest number is next to the largest that there is, so that small ones keep their digits.
    """
    rows, columns = matrix.shape
    groups, quads = -(-rows // GROUP), -(-columns // QUAD)
    padded = np.zeros((groups * GROUP, quads * QUAD if coarse else columns), np.float32)
    padded[:rows, :columns] = matrix
    largest = np.abs(padded).max(axis=1, keepdims=True)
    largest[largest == 0] = LARGEST_CODE
    if coarse:
        scale = largest / LARGEST_CODE
        numbers = (np.rint(padded / scale) + ZERO).astype(np.uint8)
        laid_out = numbers.reshape(groups, GROUP, quads, QUAD).transpose(0, 2, 1, 3)
    else:
        scale = np.exp2(np.ceil(np.log2(largest)))  # exact to divide by
        laid_out = (padded / scale).astype(np.float16).reshape(groups, GROUP, columns).transpose(0, 2, 1)
    return np.ascontiguousarray(laid_out), scale.ravel().astype(np.float32)

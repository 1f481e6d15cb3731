"""An adapter's matrices as the CPU library reads them: see PfLowRank of abi.h. Pure."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polyfleet.kernels.cpu.layouts import FOUR_BITS, format_read
from polyfleet.kernels.cpu.stages import GROUP
from polyfleet.kernels.weights.weight import WeightFormat

QUAD = 4  # columns that lie together
STORED = {16: 1, 8: QUAD, 4: 2 * QUAD}  # columns are padded to multiples of it, by the bits of a number
SHARES = 1.0, 0.85, 0.7  # of a row's largest number, that the lowest code may stand for
TINY = 1e-30  # rows without a larger number count as zero

Bytes = NDArray[np.uint8]


def adapter_bits(form: WeightFormat) -> int:
    """Bits of the numbers that change weights of that format: as many as these have, at most 8 where they are codes.

    An adapter is a small part of its weights, so what its codes lose is a small part of what the weights' lost.
    """
    if not form.quantised:
        return 16
    return 4 if format_read(form) in FOUR_BITS else 8


def pack_rows(matrix: Tensor, bits: int) -> Bytes:
    """Groups of 16 rows, each with the scales of its rows behind its numbers."""
    rows, columns = matrix.shape
    groups = -(-rows // GROUP)
    padded = np.zeros((groups * GROUP, -(-columns // STORED[bits]) * STORED[bits]), np.float32)
    padded[:rows, :columns] = matrix
    scale, numbers = _halves(padded) if bits == 16 else _codes(padded, bits)
    by_column = numbers.reshape(groups, GROUP, -1)
    laid_out = {16: _columns, 8: _quads, 4: _nibbles}[bits](by_column).reshape(groups, -1).view(np.uint8)
    scales = scale.view(torch.int16).numpy().reshape(groups, GROUP).view(np.uint8)
    return np.concatenate([laid_out, scales], axis=1).ravel()


def _halves(rows: NDArray[np.float32]) -> tuple[Tensor, NDArray[Any]]:
    """Scales that are powers of two, and what is left: the largest is next to 1, so small numbers keep their digits."""
    largest = np.abs(rows).max(axis=1, keepdims=True)
    scale = np.exp2(np.ceil(np.log2(np.where(largest > TINY, largest, 1))))  # exact to divide by, and in bfloat16
    return torch.from_numpy(scale).bfloat16(), (rows / scale).astype(np.float16)


def _codes(rows: NDArray[np.float32], bits: int) -> tuple[Tensor, NDArray[np.uint8]]:
    """Each row's largest number is the lowest code, which has no opposite: its scale has that number's sign.

    Of four bits a scale that cuts the largest off may lose less of all: the best of a few is taken.
    """
    zero = 2 ** (bits - 1)
    extreme = np.take_along_axis(rows, np.abs(rows).argmax(axis=1, keepdims=True), axis=1)
    extreme = np.where(np.abs(extreme) > TINY, extreme, -zero)
    tried = [_rounded(rows, extreme * share / -zero, zero) for share in (SHARES if bits == 4 else SHARES[:1])]
    best = np.argmin([loss for _, _, loss in tried], axis=0)
    scales, codes = (np.stack([each[part] for each in tried]) for part in (0, 1))
    every = np.arange(len(rows))
    return torch.from_numpy(scales[best, every]).bfloat16(), codes[best, every]


def _rounded(
    rows: NDArray[np.float32], wanted: NDArray[np.float32], zero: int
) -> tuple[NDArray[np.float32], Bytes, NDArray[np.float32]]:
    """Scales as bfloat16 has them, codes, and each row's squared error."""
    scale = torch.from_numpy(wanted.astype(np.float32)).bfloat16().float().numpy()
    codes = (np.rint(rows / scale) + zero).clip(0, 2 * zero - 1)
    return scale, codes.astype(np.uint8), np.square((codes - zero) * scale - rows).sum(axis=1)


def _columns(numbers: NDArray[Any]) -> NDArray[Any]:
    return np.ascontiguousarray(numbers.transpose(0, 2, 1))


def _quads(codes: Bytes) -> Bytes:
    """[groups, 16, columns] as [groups, columns / 4, 16, 4]."""
    groups, rows, _ = codes.shape
    return np.ascontiguousarray(codes.reshape(groups, rows, -1, QUAD).transpose(0, 2, 1, 3))


def _nibbles(codes: Bytes) -> Bytes:
    """[groups, 16, columns] as [groups, columns / 8, 16, 4]: every other quad is the high nibbles."""
    quads = _quads(codes)
    return np.ascontiguousarray(quads[:, ::2] | quads[:, 1::2] << 4)

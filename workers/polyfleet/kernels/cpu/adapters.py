"""An adapter's matrices as the CPU library reads them: see PfLowRank of abi.h. Pure."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polyfleet.kernels.cpu.layouts import FOUR_BITS, format_read
from polyfleet.kernels.cpu.stages import GROUP
from polyfleet.kernels.weights import WeightFormat

QUAD, BLOCK = 4, 32  # columns that lie together
STORED = {16: 1, 8: QUAD, 5: BLOCK // 2}  # columns are padded to multiples of it, by the bits of a number
TINY = 1e-30  # rows without a larger number count as zero

Bytes = NDArray[np.uint8]


def adapter_bits(form: WeightFormat) -> int:
    """Bits of the numbers that change weights of that format, no more than these need.

    What 5 bits lose of an adapter a tenth as large as the weights is a tenth of what these lost by their 4 bits.
    """
    if not form.quantised:
        return 16
    return 5 if format_read(form) in FOUR_BITS else 8


def pack_rows(matrix: Tensor, bits: int) -> Bytes:
    """Groups of 16 rows, each with the scales of its rows behind its numbers."""
    rows, columns = matrix.shape
    groups = -(-rows // GROUP)
    padded = np.zeros((groups * GROUP, -(-columns // STORED[bits]) * STORED[bits]), np.float32)
    padded[:rows, :columns] = matrix
    scale, numbers = _halves(padded) if bits == 16 else _codes(padded, bits)
    by_column = numbers.reshape(groups, GROUP, -1)
    laid_out = {16: _columns, 8: _quads, 5: _fives}[bits](by_column).reshape(groups, -1).view(np.uint8)
    scales = scale.view(torch.int16).numpy().reshape(groups, GROUP).view(np.uint8)
    return np.concatenate([laid_out, scales], axis=1).ravel()


def _halves(rows: NDArray[np.float32]) -> tuple[Tensor, NDArray[Any]]:
    """Scales that are powers of two, and what is left: the largest is next to 1, so small numbers keep their digits."""
    largest = np.abs(rows).max(axis=1, keepdims=True)
    scale = np.exp2(np.ceil(np.log2(np.where(largest > TINY, largest, 1))))  # exact to divide by, and in bfloat16
    return torch.from_numpy(scale).bfloat16(), (rows / scale).astype(np.float16)


def _codes(rows: NDArray[np.float32], bits: int) -> tuple[Tensor, NDArray[np.uint8]]:
    """Each row's largest number is the lowest code, which has no opposite: its scale has that number's sign."""
    zero = 2 ** (bits - 1)
    extreme = np.take_along_axis(rows, np.abs(rows).argmax(axis=1, keepdims=True), axis=1)
    scale = torch.from_numpy(np.where(np.abs(extreme) > TINY, extreme / -zero, 1)).bfloat16()
    codes = np.rint(rows / scale.float().numpy()) + zero
    return scale, codes.clip(0, 2 * zero - 1).astype(np.uint8)


def _columns(numbers: NDArray[Any]) -> NDArray[Any]:
    return np.ascontiguousarray(numbers.transpose(0, 2, 1))


def _quads(codes: Bytes) -> Bytes:
    """[groups, 16, columns] as [groups, columns / 4, 16, 4]."""
    groups, rows, _ = codes.shape
    return np.ascontiguousarray(codes.reshape(groups, rows, -1, QUAD).transpose(0, 2, 1, 3))


def _fives(codes: Bytes) -> Bytes:
    """Blocks of 32 columns, at the end one of 16: nibbles, then the bits above them."""
    ends = range(BLOCK, codes.shape[2] + BLOCK, BLOCK)
    return np.concatenate([_block(codes[..., end - BLOCK : end]) for end in ends], axis=1)


def _block(codes: Bytes) -> Bytes:
    """[groups, 16, columns] as [groups, bytes]."""
    groups = len(codes)
    quads = _quads(codes).reshape(groups, -1, GROUP * QUAD)
    nibbles = quads[:, ::2] & 15 | (quads[:, 1::2] & 15) << 4
    bits = np.packbits(quads >> 4, axis=-1, bitorder="little")
    return np.concatenate([nibbles.reshape(groups, -1), bits.reshape(groups, -1)], axis=1)

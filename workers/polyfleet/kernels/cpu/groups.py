"""Weights quantised in groups of columns, as checkpoints of int4 and int8 models hold them, repacked as GGML blocks.

A block has 32 columns; a group of any multiple of 32 becomes blocks that repeat its scale. Scales are kept in float16.
"""

import torch
from torch import Tensor

from polyfleet.kernels.weights import Weight, WeightFormat

BLOCK = 32


def pack_int4_groups(name: str, codes: Tensor, scales: Tensor, zeros: Tensor) -> Weight:
    """Q4_1 of scale * (code - zero): codes [rows, columns] in 0 ... 15, scales and zeros [rows, groups].

    Raises ValueError for shapes that don't fit and for codes out of range.
    """
    blocks, scale = _blocks(codes, scales)
    if zeros.shape != scales.shape:
        raise ValueError(f"{tuple(zeros.shape)} zeros don't fit {tuple(scales.shape)} scales")
    if codes.min() < 0 or codes.max() > 15:
        raise ValueError("int4 codes must be in 0 ... 15")
    zero = zeros.repeat_interleave(blocks.shape[1] // zeros.shape[1], dim=1).unsqueeze(-1)
    low, high = blocks.to(torch.uint8).chunk(2, dim=-1)
    minimum = -scale.float() * zero.float()
    data = torch.cat((_bytes(scale), _bytes(minimum), low | high << 4), dim=-1).flatten(1)
    return Weight(name, WeightFormat.Q4_1, codes.shape[0], codes.shape[1], data)


def pack_int8_groups(name: str, codes: Tensor, scales: Tensor) -> Weight:
    """Q8_0 of scale * code: codes [rows, columns] in -128 ... 127, scales [rows, groups]. ValueError as above."""
    blocks, scale = _blocks(codes, scales)
    if codes.min() < -128 or codes.max() > 127:
        raise ValueError("int8 codes must be in -128 ... 127")
    data = torch.cat((_bytes(scale), blocks.to(torch.int8).view(torch.uint8)), dim=-1).flatten(1)
    return Weight(name, WeightFormat.Q8_0, codes.shape[0], codes.shape[1], data)


def _blocks(codes: Tensor, scales: Tensor) -> tuple[Tensor, Tensor]:
    """Codes [rows, blocks, 32] and the scale of each block [rows, blocks, 1]."""
    rows, columns = codes.shape
    groups = scales.shape[1]
    if len(scales) != rows or columns % groups or (columns // groups) % BLOCK:
        fit = f"{tuple(scales.shape)} scales don't fit {rows} x {columns} codes"
        raise ValueError(f"{fit}: a group must have a multiple of {BLOCK} columns")
    blocks = codes.reshape(rows, -1, BLOCK)
    return blocks, scales.repeat_interleave(blocks.shape[1] // groups, dim=1).unsqueeze(-1)


def _bytes(numbers: Tensor) -> Tensor:
    return numbers.to(torch.float16).contiguous().view(torch.uint8)

"""Blocks of 32 columns for weights of quantised folders: a scale in float32, codes, and of integers their zero.

    INT4  scale, zero (1 byte), 16 bytes of nibbles as in GGML's Q4_0     scale * (code - zero)
    INT8  scale, zero (1 byte), 32 codes of 0 ... 255                     scale * (code - zero)
    FP8   scale, 32 numbers of e4m3                                       scale * number

A group of more columns repeats its scale in each of its blocks.
"""

import torch
from torch import Tensor

from polyfleet.kernels.weights.ggml_blocks import nibbles
from polyfleet.kernels.weights.groups import Groups, floats, grouped
from polyfleet.kernels.weights.weight import Weight, WeightFormat

BLOCK = 32  # columns
MIDDLE = {WeightFormat.INT4: 8, WeightFormat.INT8: 128}  # the zero of symmetric codes


def _int4(blocks: Tensor) -> Groups:
    codes = nibbles(blocks[..., 5:]).short() - blocks[..., 4:5]
    return grouped(blocks, codes, floats(blocks, 0, torch.float32))


def _int8(blocks: Tensor) -> Groups:
    return grouped(blocks, blocks[..., 5:].short() - blocks[..., 4:5], floats(blocks, 0, torch.float32))


def _fp8(blocks: Tensor) -> Groups:
    numbers = blocks[..., 4:].contiguous().view(torch.float8_e4m3fn)
    return grouped(blocks, numbers, floats(blocks, 0, torch.float32))


def int4_parts(data: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Codes 0 ... 15 [rows, blocks, 32], scales and zeros [rows, blocks] of INT4's bytes."""
    blocks = data.view(len(data), -1, 21)
    return nibbles(blocks[..., 5:]), floats(blocks, 0, torch.float32).squeeze(-1), blocks[..., 4]


FOLDER = {WeightFormat.INT4: _int4, WeightFormat.INT8: _int8, WeightFormat.FP8: _fp8}


def pack_integers(name: str, form: WeightFormat, codes: Tensor, scales: Tensor, zeros: Tensor | None = None) -> Weight:
    """INT4 or INT8 of codes [rows, columns] that are not negative, scales and zeros [rows, groups] of a byte.

    Without zeros codes count from the middle. Raises ValueError for shapes that don't fit and for codes out of range.
    """
    for what, numbers, most in (("codes", codes, 2 * MIDDLE[form] - 1), ("zeros", zeros, 255)):
        if numbers is not None and not 0 <= int(numbers.min()) <= int(numbers.max()) <= most:
            raise ValueError(f"{form.value} {what} must be in 0 ... {most}")
    if zeros is None:
        zeros = torch.full_like(scales, MIDDLE[form])
    blocks = codes.to(torch.uint8).reshape(len(codes), -1, BLOCK)
    if form is WeightFormat.INT4:
        blocks = blocks[..., :16] | blocks[..., 16:] << 4
    zero = _repeated(zeros, codes).to(torch.uint8)
    return _weight(name, form, codes, _bytes(_repeated(scales, codes)), zero, blocks)


def pack_fp8(name: str, numbers: Tensor, scales: Tensor) -> Weight:
    """FP8 of numbers [rows, columns] in e4m3 and scales [rows, groups]. Raises ValueError for shapes that don't fit."""
    blocks = numbers.contiguous().view(torch.uint8).reshape(len(numbers), -1, BLOCK)
    return _weight(name, WeightFormat.FP8, numbers, _bytes(_repeated(scales, numbers)), blocks)


def fits(columns: int, groups: int) -> bool:
    """Whether rows can be packed with so many scales each."""
    return groups > 0 and columns % groups == 0 and columns // groups % BLOCK == 0


def _weight(name: str, form: WeightFormat, codes: Tensor, *parts: Tensor) -> Weight:
    return Weight(name, form, codes.shape[0], codes.shape[1], torch.cat(parts, dim=-1).flatten(1))


def _repeated(each: Tensor, codes: Tensor) -> Tensor:
    """Scales or zeros [rows, groups], once for each block [rows, blocks, 1]."""
    rows, columns = codes.shape
    if len(each) != rows or not fits(columns, each.shape[1]):
        fit = f"{tuple(each.shape)} scales or zeros don't fit {rows} x {columns} codes"
        raise ValueError(f"{fit}: a group must have a multiple of {BLOCK} columns")
    return each.repeat_interleave(columns // BLOCK // each.shape[1], dim=1).unsqueeze(-1)


def _bytes(numbers: Tensor) -> Tensor:
    return numbers.float().contiguous().view(torch.uint8)

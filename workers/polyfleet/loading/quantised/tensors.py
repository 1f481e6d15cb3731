"""Tensors of quantised folders to weights: codes unpacked, and packed again as blocks, without rounding.

O outputs (rows), I inputs (columns), G groups of inputs that share a scale. What blocks can't hold becomes dense.
"""

from collections.abc import Mapping, Sequence
from math import prod

import torch
from torch import Tensor

from polyfleet.kernels.weights.folder_blocks import BLOCK, MIDDLE, fits, pack_fp8, pack_integers
from polyfleet.kernels.weights.weight import Weight, WeightFormat

MOST_HALF, MOST_ZERO = 65504.0, 255
WORD = 32  # bits


def unpack_rows(words: Tensor, bits: int) -> Tensor:
    """Codes [R * 32 / bits, C] of words [R, C], whose low ends are the first rows; uint8."""
    parts = [(words >> shift & (1 << bits) - 1).to(torch.uint8) for shift in range(0, WORD, bits)]
    return torch.stack(parts, dim=1).flatten(0, 1)


def unpack_columns(words: Tensor, bits: int, order: tuple[int, ...] = ()) -> Tensor:
    """Codes [R, C * 32 / bits] of words [R, C], whose low ends are the first columns, or as `order` says; uint8."""
    parts = [(words >> shift & (1 << bits) - 1).to(torch.uint8) for shift in range(0, WORD, bits)]
    return torch.stack([parts[place] for place in order] or parts, dim=2).flatten(1, 2)


def integers(
    name: str,
    bits: int,
    codes: Tensor,
    scales: Tensor,
    zeros: Tensor | None = None,
    group_of: Tensor | None = None,
    size: int = 0,
) -> Weight:
    """scale * (code - zero) of codes [O, I], scales and zeros [O, G]; without zeros codes count from the middle.

    `size`: inputs of a group, the last one in part; 0: all alike. `group_of` [I]: the group of each input, where they
    don't lie side by side. Raises ValueError for what is wrong.
    """
    form = WeightFormat.INT4 if bits == 4 else WeightFormat.INT8
    columns, groups = codes.shape[1], scales.shape[1]
    check_scales(scales)
    if zeros is not None and zeros.shape != scales.shape:
        raise ValueError(f"has {_sides(zeros)} zeros, which don't fit {_sides(scales)} scales")
    if len(scales) != len(codes) or not groups:
        raise ValueError(f"has {_sides(scales)} scales, which don't fit {_sides(codes)} codes")
    if group_of is None:
        group_of = torch.arange(columns) // (size or -(-columns // groups))
    if group_of.shape != (columns,) or int(group_of.min()) < 0 or int(group_of.max()) >= groups:
        raise ValueError(f"has groups of columns that are not {columns} numbers of 0 ... {groups - 1}")
    small = zeros is None or int(zeros.max()) <= MOST_ZERO
    if columns % BLOCK == 0 and small and bool((group_of.view(-1, BLOCK) == group_of[::BLOCK, None]).all()):
        each = group_of[::BLOCK].long()  # of blocks
        return pack_integers(name, form, codes, scales.float()[:, each], None if zeros is None else zeros[:, each])
    zero = MIDDLE[form] if zeros is None else zeros[:, group_of.long()].float()
    return dense(name, (codes.float() - zero) * scales.float()[:, group_of.long()])


def fp8(name: str, numbers: Tensor, scales: Tensor, tile: Sequence[int] | None = None) -> Weight:
    """Of e4m3 numbers [O, I], or stacks of them, and their scales. Raises ValueError for shapes that don't fit.

    Scales are of all, of each output or group [O, G], or of each tile [O / tile, I / tile], the last ones in part.
    """
    check_scales(scales)
    if bool((numbers.view(torch.uint8) & 0x7F == 0x7F).any()):
        raise ValueError("holds numbers that are not finite")
    stack, (rows, columns) = numbers.shape[:-2], numbers.shape[-2:]
    wide = scales.float()
    if tile is not None:
        expected = (*stack, -(-rows // tile[0]), -(-columns // tile[1]))
        if wide.shape != expected:
            raise ValueError(f"has {_sides(scales)} scales, tiles of {tile[0]} x {tile[1]} need {_sides(expected)}")
        wide = wide.repeat_interleave(tile[0], dim=-2).narrow(-2, 0, rows)
        unit = BLOCK if tile[1] % BLOCK == 0 and columns % BLOCK == 0 else 1
        wide = wide.repeat_interleave(tile[1] // unit, dim=-1).narrow(-1, 0, columns // unit)
    else:
        wide = _of_rows(wide, stack, rows, columns)
    flat, wide = numbers.flatten(0, -2), wide.expand(*stack, rows, wide.shape[-1]).flatten(0, -2)
    if fits(columns, wide.shape[1]):
        return pack_fp8(name, flat, wide)
    return dense(name, flat.float() * wide.repeat_interleave(columns // wide.shape[1], dim=1))


def _of_rows(scales: Tensor, stack: Sequence[int], rows: int, columns: int) -> Tensor:
    """[..., 1 or rows, groups] of a scale of all, of each matrix, of each row, or of groups of each row's columns."""
    if scales.numel() == 1:
        return scales.reshape((1,) * (len(stack) + 2))
    if scales.numel() == prod(stack):
        return scales.reshape(*stack, 1, 1)
    if scales.shape[: len(stack) + 1] == (*stack, rows):
        wide = scales.reshape(*stack, rows, -1)
        if columns % wide.shape[-1] == 0:
            return wide
    raise ValueError(f"has {_sides(scales)} scales, which don't fit {rows} x {columns} numbers")


def read_fp8(name: str, parts: Mapping[str, Tensor], tile: Sequence[int] | None) -> Weight:
    """As `fp8`, of the tensors of a weight by suffix, with tiles [outputs, inputs] where they are stated."""
    numbers, scales = parts.get(""), parts.get("_scale_inv", parts.get("_scale"))
    if numbers is None or scales is None:
        raise ValueError("has no numbers" if numbers is None else "has no scales")
    if numbers.dtype is not torch.float8_e4m3fn:
        raise ValueError(f"is {str(numbers.dtype).removeprefix('torch.')}, not fp8 (e4m3), and has scales")
    if numbers.dim() not in (2, 3):
        raise ValueError(f"has {numbers.dim()} dimensions, a matrix is needed")
    return fp8(name, numbers, scales, tile)


def _sides(of: Tensor | Sequence[int]) -> str:
    return " x ".join(map(str, of.shape if isinstance(of, Tensor) else of))


def dense(name: str, numbers: Tensor) -> Weight:
    """In half precision, or in float32 where that is too small."""
    form = WeightFormat.F16 if float(numbers.abs().max()) <= MOST_HALF else WeightFormat.F32
    data = numbers.half() if form is WeightFormat.F16 else numbers
    return Weight(name, form, data.shape[0], data.shape[1], data)


def check_scales(scales: Tensor) -> None:
    """Raise ValueError for one that is not finite, or that is not a number of any kind that is known."""
    if not scales.is_floating_point():
        raise ValueError(f"its scales are {str(scales.dtype).removeprefix('torch.')}, not floating point")
    if not bool(scales.float().isfinite().all()):
        raise ValueError("has scales that are not finite")

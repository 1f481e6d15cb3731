"""GGML's block formats: their geometry, and their dequantisation in torch, on any device.

Block layouts are those of ggml's `block_q8_0`, `block_q4_0`, `block_q4_1`, `block_q4_K` and `block_q6_K`
(https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h). Scales are little-endian float16.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from polyfleet.kernels.weights import Weight, WeightFormat

CHUNK_WEIGHTS = 1 << 22  # dequantised at a time, which bounds the float32 scratch memory to about 50 MB


@dataclass(frozen=True, slots=True)
class BlockLayout:
    """A block of `weights` consecutive weights of one row takes `size` bytes."""

    weights: int
    size: int


BLOCKS: Mapping[WeightFormat, BlockLayout] = {
    WeightFormat.F32: BlockLayout(1, 4),
    WeightFormat.F16: BlockLayout(1, 2),
    WeightFormat.BF16: BlockLayout(1, 2),
    WeightFormat.Q8_0: BlockLayout(32, 34),
    WeightFormat.Q4_0: BlockLayout(32, 18),
    WeightFormat.Q4_1: BlockLayout(32, 20),
    WeightFormat.Q4_K: BlockLayout(256, 144),
    WeightFormat.Q6_K: BlockLayout(256, 210),
}

DENSE_DTYPES: Mapping[WeightFormat, torch.dtype] = {
    WeightFormat.F32: torch.float32,
    WeightFormat.F16: torch.float16,
    WeightFormat.BF16: torch.bfloat16,
}


def row_bytes(form: WeightFormat, columns: int) -> int:
    """Bytes of one row; raises ValueError when blocks don't fit it evenly."""
    block = BLOCKS[form]
    if columns % block.weights:
        raise ValueError(f"rows of {columns} weights can't be {form.value}, whose blocks hold {block.weights}")
    return columns // block.weights * block.size


def dequantise(weight: Weight, dtype: torch.dtype, device: torch.device | str = "cpu") -> Tensor:
    """The weight as a dense [rows, columns] tensor; dense weights of that dtype and device are not copied."""
    if not weight.format.quantised:
        return weight.data.to(device=device, dtype=dtype)
    out = torch.empty((weight.rows, weight.columns), dtype=dtype, device=device)
    expand, block = _EXPAND[weight.format], BLOCKS[weight.format]
    step = max(1, CHUNK_WEIGHTS // weight.columns)
    for start in range(0, weight.rows, step):
        rows = weight.data[start : start + step].to(device)
        blocks = rows.reshape(len(rows), -1, block.size)
        out[start : start + step] = expand(blocks).reshape(len(rows), weight.columns)
    return out


def codes_of(form: WeightFormat, data: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    """Of rows of blocks with 4-bit codes: codes [rows, groups, 32], scales [rows, groups] and minima, all groups of 32.

    Without minima codes count from 8.
    """
    blocks = data.reshape(len(data), -1, BLOCKS[form].size)
    if form is WeightFormat.Q4_K:
        quants, scales, minima = _codes_q4_k(blocks)
        return quants.flatten(1, 2), scales.flatten(1), -minima.flatten(1)
    if form is WeightFormat.Q4_1:
        return _nibbles(blocks[..., 4:]), _float16(blocks, 0).squeeze(-1), _float16(blocks, 2).squeeze(-1)
    return _nibbles(blocks[..., 2:]), _float16(blocks, 0).squeeze(-1), None


def _float16(blocks: Tensor, offset: int) -> Tensor:
    """The float16 at byte `offset` of each block, as float32 [rows, blocks, 1]."""
    return blocks[..., offset : offset + 2].contiguous().view(torch.float16).float()


def _nibbles(packed: Tensor) -> Tensor:
    """Low nibbles of all bytes, then their high nibbles, along the last axis."""
    return torch.cat((packed & 0xF, packed >> 4), dim=-1)


def _expand_q8_0(blocks: Tensor) -> Tensor:
    return blocks[..., 2:].contiguous().view(torch.int8) * _float16(blocks, 0)


def _expand_q4_0(blocks: Tensor) -> Tensor:
    return (_nibbles(blocks[..., 2:]).float() - 8) * _float16(blocks, 0)


def _expand_q4_1(blocks: Tensor) -> Tensor:
    return _nibbles(blocks[..., 4:]) * _float16(blocks, 0) + _float16(blocks, 2)


def _expand_q4_k(blocks: Tensor) -> Tensor:
    quants, scales, minima = _codes_q4_k(blocks)
    return scales * quants - minima


def _codes_q4_k(blocks: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Eight sub-blocks of 32 with a 6-bit scale and minimum each, packed in 12 bytes."""
    packed = blocks[..., 4:16]
    first, second, high = packed[..., 0:4], packed[..., 4:8], packed[..., 8:12]
    scales = torch.cat((first & 63, (high & 0xF) | ((first >> 6) << 4)), dim=-1)
    minima = torch.cat((second & 63, (high >> 4) | ((second >> 6) << 4)), dim=-1)
    scales = (scales * _float16(blocks, 0)).unsqueeze(-1)
    minima = (minima * _float16(blocks, 2)).unsqueeze(-1)
    shape = blocks.shape[:2]
    return _nibbles(blocks[..., 16:].reshape(*shape, 4, 32)).view(*shape, 8, 32), scales, minima


def _expand_q6_k(blocks: Tensor) -> Tensor:
    """Sixteen sub-blocks of 16 with an int8 scale each; quants are 4 low bits in `low` and 2 high bits in `high`."""
    shape = blocks.shape[:2]
    low = blocks[..., :128].reshape(*shape, 2, 2, 32)  # [.., half, pair, 32]
    high = blocks[..., 128:192].reshape(*shape, 2, 32)
    scales = blocks[..., 192:208].contiguous().view(torch.int8) * _float16(blocks, 208)
    low4 = torch.cat((low & 0xF, low >> 4), dim=-2)  # [.., half, quarter, 32]
    high2 = torch.stack([(high >> shift) & 3 for shift in (0, 2, 4, 6)], dim=-2)
    quants = (low4 | (high2 << 4)).float() - 32
    return scales.unsqueeze(-1) * quants.view(*shape, 16, 16)


_EXPAND: Mapping[WeightFormat, Callable[[Tensor], Tensor]] = {
    WeightFormat.Q8_0: _expand_q8_0,
    WeightFormat.Q4_0: _expand_q4_0,
    WeightFormat.Q4_1: _expand_q4_1,
    WeightFormat.Q4_K: _expand_q4_k,
    WeightFormat.Q6_K: _expand_q6_k,
}

"""GGML's plain blocks as Groups: codes of 2 to 8 bits in blocks of 32 or 256 columns.

Layouts are those of ggml's `block_q4_0` and the like (https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h).
Functions take blocks [R, B, bytes] of uint8.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from polyfleet.kernels.weights.groups import Groups, fields, floats, grouped, pieces, split, words
from polyfleet.kernels.weights.weight import WeightFormat

LEVELS = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)  # of IQ4's codes
DOUBLED = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)  # what MXFP4's codes stand for, times 2
NAN_EXPONENT = 255  # of MXFP4's powers
NIBBLES, PAIRS, BITS = (0, 4), (0, 2, 4, 6), tuple(range(8))


def nibbles(packed: Tensor) -> Tensor:
    """Low nibbles of all bytes, then their high nibbles, along the last axis."""
    return torch.cat((packed & 0xF, packed >> 4), dim=-1)


def _q8_0(blocks: Tensor) -> Groups:
    return grouped(blocks, blocks[..., 2:].contiguous().view(torch.int8), floats(blocks, 0))


def _q8_k(blocks: Tensor) -> Groups:
    codes = blocks[..., 4:260].contiguous().view(torch.int8)
    return grouped(blocks, codes, floats(blocks, 0, torch.float32).expand(-1, -1, 8))


def _q4_0(blocks: Tensor) -> Groups:
    return grouped(blocks, nibbles(blocks[..., 2:]).to(torch.int8) - 8, floats(blocks, 0))


def _q4_1(blocks: Tensor) -> Groups:
    return grouped(blocks, nibbles(blocks[..., 4:]), floats(blocks, 0), floats(blocks, 2))


def _fifth_bits(blocks: Tensor, offset: int) -> Tensor:
    """Of 32 codes, each 16 where its bit is set: [R, B, 32]."""
    return fields(blocks[..., offset : offset + 4], BITS, 1).flatten(-2) << 4


def _q5_0(blocks: Tensor) -> Groups:
    codes = nibbles(blocks[..., 6:]) | _fifth_bits(blocks, 2)
    return grouped(blocks, codes.to(torch.int8) - 16, floats(blocks, 0))


def _q5_1(blocks: Tensor) -> Groups:
    codes = nibbles(blocks[..., 8:]) | _fifth_bits(blocks, 4)
    return grouped(blocks, codes, floats(blocks, 0), floats(blocks, 2))


def _q2_k(blocks: Tensor) -> Groups:
    """Sixteen groups of 16 with a scale and a minimum of 4 bits each."""
    packed, codes = blocks[..., :16], pieces(split(blocks[..., 16:80], 2, 32), PAIRS, 3)
    scales, minima = floats(blocks, 80) * (packed & 0xF), floats(blocks, 82) * (packed >> 4)
    return grouped(blocks, codes, scales, -minima, width=16)


def _q3_k(blocks: Tensor) -> Groups:
    """Sixteen groups of 16 with a scale of 6 bits each; codes have their third bit apart."""
    high = pieces(blocks[..., :32], BITS, 1)  # [R, B, 8, 32]
    low = pieces(split(blocks[..., 32:96], 2, 32), PAIRS, 3).flatten(-3, -2)
    scales = pieces(blocks[..., 96:104], NIBBLES, 0xF).flatten(-2)
    scales = scales | pieces(blocks[..., 104:108], PAIRS, 3).flatten(-2) << 4
    codes = (low | high << 2).to(torch.int8) - 4
    return grouped(blocks, codes, floats(blocks, 108) * (scales.float() - 32), width=16)


def _scales_and_minima(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Of eight groups of 32 [R, B, 8], whose 6 bits each are packed in 12 bytes."""
    packed = blocks[..., 4:16]
    first, second, high = packed[..., 0:4], packed[..., 4:8], packed[..., 8:12]
    scales = torch.cat((first & 63, (high & 0xF) | ((first >> 6) << 4)), dim=-1)
    minima = torch.cat((second & 63, (high >> 4) | ((second >> 6) << 4)), dim=-1)
    return floats(blocks, 0) * scales, floats(blocks, 2) * minima


def _q4_k(blocks: Tensor) -> Groups:
    scales, minima = _scales_and_minima(blocks)
    return grouped(blocks, pieces(split(blocks[..., 16:], 4, 32), NIBBLES, 0xF), scales, -minima)


def _q5_k(blocks: Tensor) -> Groups:
    scales, minima = _scales_and_minima(blocks)
    low = pieces(split(blocks[..., 48:], 4, 32), NIBBLES, 0xF).flatten(-3, -2)
    return grouped(blocks, low | pieces(blocks[..., 16:48], BITS, 1) << 4, scales, -minima)


def _q6_k(blocks: Tensor) -> Groups:
    """Sixteen groups of 16 with an int8 scale each; codes are 4 low bits and 2 high ones."""
    low = pieces(split(blocks[..., :128], 2, 64), NIBBLES, 0xF)  # [R, B, half, 2, 64]
    high = pieces(split(blocks[..., 128:192], 2, 32), PAIRS, 3)  # [R, B, half, 4, 32]
    codes = (low.flatten(-2) | high.flatten(-2) << 4).to(torch.int8) - 32
    scales = blocks[..., 192:208].contiguous().view(torch.int8) * floats(blocks, 208)
    return grouped(blocks, codes, scales, width=16)


def _tq1_0(blocks: Tensor) -> Groups:
    """Five numbers of -1, 0 and 1 in a byte, as digits of a fraction to the base of 3; four in the last bytes."""
    parts = []
    for first, last, width, digits in ((0, 32, 32, 5), (32, 48, 16, 5), (48, 52, 4, 4)):
        packed = split(blocks[..., first:last], -1, width)
        parts.append(torch.stack([packed * 3**digit for digit in range(digits)], dim=-2).flatten(-3))
    codes = (torch.cat(parts, dim=-1).short() * 3 >> 8).to(torch.int8) - 1
    return grouped(blocks, codes, floats(blocks, 52).expand(-1, -1, 8))


def _tq2_0(blocks: Tensor) -> Groups:
    codes = pieces(split(blocks[..., :64], 2, 32), PAIRS, 3).to(torch.int8) - 1
    return grouped(blocks, codes, floats(blocks, 64).expand(-1, -1, 8))


def _levels(places: Tensor, levels: tuple[int, ...] = LEVELS) -> Tensor:
    return torch.tensor(levels, dtype=torch.int8, device=places.device)[places.int()]


def _mxfp4(blocks: Tensor) -> Groups:
    """A power of 2 (OCP Microscaling Formats 1.0: E8M0), and E2M1 numbers, here twice as large."""
    exponents = blocks[..., 0]
    powers = torch.ldexp(torch.ones_like(exponents, dtype=torch.float32), exponents.int() - 128)
    scales = torch.where(exponents == NAN_EXPONENT, torch.nan, powers)
    return grouped(blocks, _levels(nibbles(blocks[..., 1:]), DOUBLED), scales)


def _iq4_nl(blocks: Tensor) -> Groups:
    return grouped(blocks, _levels(nibbles(blocks[..., 2:])), floats(blocks, 0))


def _iq4_xs(blocks: Tensor) -> Groups:
    """Eight groups of 32 with a scale of 6 bits each."""
    high = fields(words(blocks[..., 2:4], torch.int16), range(0, 16, 2), 3).flatten(-2)
    scales = fields(blocks[..., 4:8], NIBBLES, 0xF).flatten(-2) | high << 4
    codes = _levels(nibbles(split(blocks[..., 8:], 8, 16)))
    return grouped(blocks, codes, floats(blocks, 0) * (scales.float() - 32))


PLAIN: Mapping[WeightFormat, Callable[[Tensor], Groups]] = {
    WeightFormat.Q8_0: _q8_0,
    WeightFormat.Q8_K: _q8_k,
    WeightFormat.Q4_0: _q4_0,
    WeightFormat.Q4_1: _q4_1,
    WeightFormat.Q5_0: _q5_0,
    WeightFormat.Q5_1: _q5_1,
    WeightFormat.Q2_K: _q2_k,
    WeightFormat.Q3_K: _q3_k,
    WeightFormat.Q4_K: _q4_k,
    WeightFormat.Q5_K: _q5_k,
    WeightFormat.Q6_K: _q6_k,
    WeightFormat.TQ1_0: _tq1_0,
    WeightFormat.TQ2_0: _tq2_0,
    WeightFormat.IQ4_NL: _iq4_nl,
    WeightFormat.IQ4_XS: _iq4_xs,
    WeightFormat.MXFP4: _mxfp4,
}

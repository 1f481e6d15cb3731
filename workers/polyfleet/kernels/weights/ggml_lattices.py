"""GGML's IQ1, IQ2 and IQ3 blocks as Groups: 4 or 8 magnitudes at a time are a row of a grid, and signs stand apart.

Blocks have 256 columns. Functions take blocks [R, B, bytes] of uint8.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from polyfleet.kernels.weights.ggml_blocks import BITS, NIBBLES, PAIRS
from polyfleet.kernels.weights.ggml_grids import grid
from polyfleet.kernels.weights.groups import Groups, fields, floats, grouped, split, words
from polyfleet.kernels.weights.weight import WeightFormat

SEVENS = (0, 7, 14, 21)  # where the signs of eight numbers each stand in a word
THREES = (0, 3, 6, 9)
EIGHTHS = 8  # IQ1's numbers are kept in eighths, to be whole


def _of_grid(name: str, places: Tensor) -> Tensor:
    """[R, B, n, 4 or 8] of places [R, B, n]."""
    return grid(name).to(places.device)[places.long()]


def _signed(numbers: Tensor, signs: Tensor) -> Tensor:
    """Numbers [R, B, n, w] by bytes of signs [R, B, n * w / 8], a set bit for a negative one."""
    bits = fields(signs, BITS, 1).to(torch.int8)
    return numbers * (1 - 2 * bits).view(numbers.shape)


def _even(signs: Tensor) -> Tensor:
    """Seven signs and an eighth, which makes the number of negative ones even."""
    odd = signs ^ signs >> 4
    odd = odd ^ odd >> 2
    return signs | ((odd ^ odd >> 1) & 1) << 7


def _iq2_xxs(blocks: Tensor) -> Groups:
    parts = split(blocks[..., 2:66], 8, 8)
    word = words(parts[..., 4:].flatten(-2), torch.int32)
    numbers = _of_grid("IQ2_XXS", parts[..., :4].flatten(-2))
    scales = floats(blocks, 0) * (0.5 + (word >> 28).float()) * 0.25
    return grouped(blocks, _signed(numbers, _even(fields(word, SEVENS, 127)).flatten(-2)), scales)


def _iq2_xs(blocks: Tensor) -> Groups:
    word = words(blocks[..., 2:66], torch.int16)
    numbers = _signed(_of_grid("IQ2_XS", word & 511), _even(word >> 9))
    return grouped(blocks, numbers, _quarters(blocks, 66), width=16)


def _iq2_s(blocks: Tensor) -> Groups:
    high = fields(blocks[..., 66:74], PAIRS, 3).flatten(-2).int()
    numbers = _signed(_of_grid("IQ2_S", blocks[..., 2:34] | high << 8), blocks[..., 34:66])
    return grouped(blocks, numbers, _quarters(blocks, 74), width=16)


def _quarters(blocks: Tensor, offset: int) -> Tensor:
    """Sixteen scales [R, B, 16] of 4 bits each."""
    return floats(blocks, 0) * (0.5 + fields(blocks[..., offset : offset + 8], NIBBLES, 0xF).flatten(-2)) * 0.25


def _iq3_xxs(blocks: Tensor) -> Groups:
    word = words(blocks[..., 66:98], torch.int32)
    numbers = _of_grid("IQ3_XXS", blocks[..., 2:66])
    scales = floats(blocks, 0) * (0.5 + (word >> 28).float()) * 0.5
    return grouped(blocks, _signed(numbers, _even(fields(word, SEVENS, 127)).flatten(-2)), scales)


def _iq3_s(blocks: Tensor) -> Groups:
    high = fields(blocks[..., 66:74], BITS, 1).flatten(-2).int()
    numbers = _signed(_of_grid("IQ3_S", blocks[..., 2:66] | high << 8), blocks[..., 74:106])
    scales = fields(blocks[..., 106:110], NIBBLES, 0xF).flatten(-2)
    return grouped(blocks, numbers, floats(blocks, 0) * (1 + 2 * scales))


def _iq1_s(blocks: Tensor) -> Groups:
    word = words(blocks[..., 34:50], torch.int16)
    places = blocks[..., 2:34] | fields(word, THREES, 7).flatten(-2) << 8
    scales = floats(blocks, 0) * (2 * (word >> 12 & 7) + 1)
    codes = _moved(places, (word >> 15).repeat_interleave(4, dim=-1))
    return grouped(blocks, codes, scales / EIGHTHS)


def _iq1_m(blocks: Tensor) -> Groups:
    """Its scale stands in the high nibbles of four words of scales."""
    word = words(blocks[..., 48:56], torch.int16)
    bits = sum(word[..., number] >> 12 << 4 * number for number in range(4))
    scale = bits.to(torch.int16).view(torch.float16).float().unsqueeze(-1)  # type: ignore[union-attr]
    scales = scale * (2 * fields(word, THREES, 7).flatten(-2) + 1)
    high = fields(blocks[..., 32:48], NIBBLES, 0xF).flatten(-2).int()
    codes = _moved(blocks[..., :32] | (high & 7) << 8, high >> 3)
    return grouped(blocks, codes, scales / EIGHTHS, width=16)


def _moved(places: Tensor, down: Tensor) -> Tensor:
    """Of -1, 0 and 1, an eighth more or, where `down` [R, B, n] is 1, less, in eighths."""
    return _of_grid("IQ1", places) * EIGHTHS + (1 - 2 * down).to(torch.int8).unsqueeze(-1)


LATTICES: Mapping[WeightFormat, Callable[[Tensor], Groups]] = {
    WeightFormat.IQ1_S: _iq1_s,
    WeightFormat.IQ1_M: _iq1_m,
    WeightFormat.IQ2_XXS: _iq2_xxs,
    WeightFormat.IQ2_XS: _iq2_xs,
    WeightFormat.IQ2_S: _iq2_s,
    WeightFormat.IQ3_XXS: _iq3_xxs,
    WeightFormat.IQ3_S: _iq3_s,
}

"""MXFP4 (OCP Microscaling Formats 1.0): blocks of 32 numbers of 4 bits that share a power of 2.

They become Q8_0, which holds the same numbers: no executor has kernels for the format itself.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from polyfleet.kernels.weights import Weight, WeightFormat

BLOCK = 32  # numbers
BYTES = 17  # of a block in a GGUF file: the exponent, then low nibbles of 16 numbers and high ones of the next 16
DOUBLED = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)  # what the codes stand for, times 2
LEAST, MOST = 104, 143  # exponents of powers that are half precision's, when they are halved
CHUNK = 1 << 16  # blocks at a time


def of_gguf(name: str, rows: Tensor) -> Weight:
    """A weight of rows [R, bytes] as a GGUF file has them. Raises ValueError for numbers out of range."""
    blocks = rows.view(len(rows), -1, BYTES)
    return _packed(name, blocks[..., 0], blocks[..., 1:], -1)


def of_folder(name: str, blocks: Tensor, scales: Tensor) -> Weight:
    """A weight of blocks [..., B, 16], whose bytes hold neighbours, and scales [..., B]. Raises ValueError."""
    if blocks.shape[:-1] != scales.shape or blocks.shape[-1] != BLOCK // 2:
        raise ValueError(f"{tuple(scales.shape)} scales don't fit {tuple(blocks.shape)} blocks")
    return _packed(name, scales.flatten(0, -2), blocks.flatten(0, -3), -2)


def _packed(name: str, exponents: Tensor, nibbles: Tensor, side: int) -> Weight:
    """Of exponents [R, B] and bytes [R, B, 16]; halves of a byte lie apart (side -1) or side by side (-2)."""
    rows, blocks = exponents.shape
    if int(exponents.max()) > MOST:
        raise ValueError(f"a block of {name!r} is larger than half precision holds")
    parts = [_blocks(*each, side) for each in _chunks(exponents.flatten(), nibbles.flatten(0, 1))]
    return Weight(name, WeightFormat.Q8_0, rows, blocks * BLOCK, torch.cat(parts).view(rows, -1))


def _chunks(exponents: Tensor, nibbles: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    for start in range(0, len(exponents), CHUNK):
        yield exponents[start : start + CHUNK], nibbles[start : start + CHUNK]


def _blocks(exponents: Tensor, nibbles: Tensor, side: int) -> Tensor:
    """Q8_0's: a scale in half precision, then 32 codes. What is below its least power is 0, as good as."""
    scales = torch.ldexp(torch.ones(len(exponents)), exponents.int() - 128)
    scales = torch.where(exponents < LEAST, 0.0, scales).half().view(-1, 1).view(torch.uint8)
    halves = nibbles & 15, nibbles >> 4
    codes = torch.cat(halves, dim=-1) if side == -1 else torch.stack(halves, dim=-1).flatten(1)
    numbers = torch.tensor(DOUBLED, dtype=torch.int8)[codes.int()]
    return torch.cat((scales, numbers.view(torch.uint8)), dim=1)

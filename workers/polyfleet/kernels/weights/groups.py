"""Groups of neighbouring weights of a row that share a scale, and maybe a minimum: what block formats come down to."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Groups:
    """Of R rows with G groups of W columns: a weight is scale * code + minimum."""

    codes: Tensor  # [R, G, W] whole numbers of -255 ... 255, or e4m3
    scales: Tensor  # [R, G] float32
    minima: Tensor | None = None  # the same

    @property
    def finite(self) -> bool:
        """Whether all scales and minima are."""
        sides = (self.scales,) if self.minima is None else (self.scales, self.minima)
        return all(bool(side.isfinite().all()) for side in sides)

    @property
    def numbers(self) -> Tensor:
        """[R, G, W] float32, rounded as GGML rounds them."""
        products = self.scales.unsqueeze(-1) * self.codes.float()
        return products if self.minima is None else products + self.minima.unsqueeze(-1)


def grouped(blocks: Tensor, codes: Tensor, scales: Tensor, minima: Tensor | None = None, *, width: int = 32) -> Groups:
    """Of blocks [R, B, bytes]: codes [R, B, …] in their columns' order, scales and minima [R, B, …]."""
    rows = len(blocks)
    flat = None if minima is None else minima.reshape(rows, -1)
    return Groups(codes.reshape(rows, -1, width), scales.reshape(rows, -1), flat)


def floats(blocks: Tensor, offset: int, dtype: torch.dtype = torch.float16) -> Tensor:
    """The number at byte `offset` of each block of blocks [R, B, bytes], as float32 [R, B, 1]."""
    return blocks[..., offset : offset + dtype.itemsize].contiguous().view(dtype).float()


def words(data: Tensor, dtype: torch.dtype) -> Tensor:
    """Bytes [R, B, n] as unsigned little-endian numbers of 2 or 4 bytes, as int64 [R, B, …]."""
    bits = 8 * dtype.itemsize
    return data.contiguous().view(dtype).long() & ((1 << bits) - 1)


def split(data: Tensor, *sizes: int) -> Tensor:
    """The last axis of data as several."""
    return data.reshape(*data.shape[:-1], *sizes)


def pieces(data: Tensor, shifts: Sequence[int], mask: int) -> Tensor:
    """[…, len(shifts), n] of data […, n]: the same bits of all, then the next bits of all."""
    return torch.stack([data >> shift & mask for shift in shifts], dim=-2)


def fields(data: Tensor, shifts: Sequence[int], mask: int) -> Tensor:
    """[…, n, len(shifts)] of data […, n]: all bits of the first, then all of the second."""
    return torch.stack([data >> shift & mask for shift in shifts], dim=-1)

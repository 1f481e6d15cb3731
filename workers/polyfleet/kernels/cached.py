"""Keys and values on their way into caches and out of them: as they are computed, as e4m3, or as rows of int8 codes.

A cache of bytes has no scale: keys and values of the models that there are stay far below MOST, and what does not is
cut off there. Torch moves bytes on any device, where its own type for them can hardly be indexed. Rows of codes have
one scale each, behind them: see `int8_rows`.
"""

import torch
from torch import Tensor

from polyfleet.kernels.int8_rows import MOST as MOST_CODE
from polyfleet.kernels.int8_rows import SCALE_BYTES, TINY

BYTES = torch.uint8  # the dtype of caches in e4m3
CODES = torch.int8  # of caches of codes, whose rows are longer by SCALE_BYTES
MOST = 448.0  # the largest number of e4m3


def columns(width: int, dtype: torch.dtype) -> int:
    """Of a row of so many numbers in a cache."""
    return width + SCALE_BYTES if dtype is CODES else width


def stored(numbers: Tensor, cache: Tensor) -> Tensor:
    """The numbers [..., width] as a cache holds them, to the nearest; what is no number is none there either."""
    if cache.dtype is CODES:
        return _coded(numbers.float())
    if cache.dtype is not BYTES:
        return numbers.to(cache.dtype)
    return numbers.float().clamp(-MOST, MOST).to(torch.float8_e4m3fn).view(BYTES)


def loaded(held: Tensor, dtype: torch.dtype) -> Tensor:
    """What a cache holds, as numbers; bytes must lie side by side."""
    if held.dtype is CODES:
        scales = held[..., -SCALE_BYTES:].clone(memory_format=torch.contiguous_format).view(torch.bfloat16)
        return (held[..., :-SCALE_BYTES].float() * scales.float()).to(dtype)
    return held.view(torch.float8_e4m3fn).to(dtype) if held.dtype is BYTES else held


def leaving(held: Tensor, dtype: torch.dtype) -> Tensor:
    """What a cache holds, side by side, as it travels: rows of codes as they are, else numbers (bfloat16: bits)."""
    if held.dtype is CODES:
        return held
    numbers = loaded(held, dtype)
    return numbers.view(torch.uint16) if numbers.dtype is torch.bfloat16 else numbers


def arriving(given: Tensor, cache: Tensor, dtype: torch.dtype) -> Tensor:
    """What `leaving` gave, or its bytes, as the cache holds it."""
    return given.view(CODES) if cache.dtype is CODES else stored(given.view(dtype), cache)


def pointed(cache: Tensor) -> Tensor:
    """The same memory as kernels read it."""
    return cache.view(torch.float8_e4m3fn) if cache.dtype is BYTES else cache


def _coded(numbers: Tensor) -> Tensor:
    peaks = numbers.abs().amax(-1, keepdim=True)
    scales = torch.where(peaks <= TINY, 0.0, peaks / MOST_CODE).to(torch.bfloat16)
    codes = (numbers / scales.float()).round().nan_to_num(0.0, posinf=0.0, neginf=0.0).to(CODES)
    return torch.cat((codes, scales.view(CODES)), dim=-1)

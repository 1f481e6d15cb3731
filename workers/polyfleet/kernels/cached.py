"""Keys and values on their way into caches and out of them: as they are computed, or as e4m3, a byte each.

A cache of bytes has no scale: keys and values of the models that there are stay far below MOST, and what does not is
cut off there. Torch moves bytes on any device, where its own type for them can hardly be indexed.
"""

import torch
from torch import Tensor

BYTES = torch.uint8  # the dtype of caches in e4m3
MOST = 448.0  # the largest number of e4m3


def stored(numbers: Tensor, cache: Tensor) -> Tensor:
    """The numbers as a cache holds them, to the nearest; what is no number is none there either."""
    if cache.dtype is not BYTES:
        return numbers.to(cache.dtype)
    return numbers.float().clamp(-MOST, MOST).to(torch.float8_e4m3fn).view(BYTES)


def loaded(held: Tensor, dtype: torch.dtype) -> Tensor:
    """What a cache holds, as numbers; bytes must lie side by side."""
    return held.view(torch.float8_e4m3fn).to(dtype) if held.dtype is BYTES else held


def pointed(cache: Tensor) -> Tensor:
    """The same memory as kernels read it."""
    return cache.view(torch.float8_e4m3fn) if cache.dtype is BYTES else cache

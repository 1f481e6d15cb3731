"""Keys and values of the CPU library as executors give and take them: halves, or codes with their scales."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyfleet.kernels.cpu.model import CpuModel
from polyfleet.kernels.int8_rows import SCALE_BYTES

Array = NDArray[Any]
Blocks = Sequence[Sequence[int]]  # of each cache


def shape_of(model: CpuModel, num_blocks: int) -> tuple[int, int, int]:
    """Tokens, heads and columns of so many blocks' keys, or values."""
    heads, size, width = model.values()[0].shape[1:]
    return num_blocks * size, heads, width + (SCALE_BYTES if model.codes else 0)


def read_blocks(model: CpuModel, blocks: Blocks, latent: Sequence[bool]) -> tuple[Array, ...]:
    """Of each cache [2, tokens, kv heads, columns]; of latent ones, whose keys are their values, [1, …].

    float16 with as many columns as heads are wide, or rows of codes (see `kernels.int8_rows`).
    """
    keys, values, scales = model.keys(), model.values(), model.scales() if model.codes else ()
    caches = []
    for cache, (index, values_alone) in enumerate(zip(map(list, blocks), latent, strict=True)):
        sides = keys[cache][index].transpose(0, 3, 1, 2), values[cache][index].transpose(0, 2, 1, 3)
        parts = np.empty((2, *sides[1].shape[:3], shape_of(model, 0)[2]), sides[1].dtype)
        for part, side in zip(parts, sides, strict=True):
            part[..., : side.shape[3]] = side
        for part, scale in zip(parts, scales, strict=False):
            bits = np.ascontiguousarray(scale[cache][index].transpose(0, 2, 1))
            part[..., -SCALE_BYTES:] = bits[..., None].view(np.int8)
        parts = parts[1:] if values_alone else parts
        caches.append(parts.reshape(len(parts), -1, *parts.shape[3:]))
    return tuple(caches)


def write_blocks(model: CpuModel, blocks: Blocks, caches: Sequence[Array]) -> None:
    """What `read_blocks` gave, of the same shapes."""
    keys, values, scales = model.keys(), model.values(), model.scales() if model.codes else ()
    heads, size, width = values[0].shape[1:]
    for cache, (index, tokens) in enumerate(zip(map(list, blocks), caches, strict=True)):
        sides = tokens.reshape(-1, len(index), size, heads, tokens.shape[3])[[0, -1]]
        for scale, side in zip(scales, sides, strict=False):
            bits = np.ascontiguousarray(side[..., width:]).view(np.uint16)[..., 0]
            scale[cache][index] = bits.transpose(0, 2, 1)
        k, v = sides[..., :width]
        keys[cache][index], values[cache][index] = k.transpose(0, 2, 3, 1), v.transpose(0, 2, 1, 3)

"""Contexts and steps for tests of kernels: random weights, a random KV cache, shuffled block tables."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from polyfleet.graph.ops import Attention, Rope, RopeCache
from polyfleet.kernels.context import KernelContext
from polyfleet.kernels.step import Step
from polyfleet.kernels.step import make_step as step_over
from polyfleet.kernels.weights.weight import Weight, WeightFormat

NUM_BLOCKS = 64


def make_context(
    dtype: torch.dtype = torch.float32,
    *,
    kv_heads: int = 2,
    head_dim: int = 8,
    block_size: int = 4,
    weights: Mapping[str, Tensor] | None = None,
) -> KernelContext:
    """Two caches that hold random numbers everywhere."""
    generator = torch.Generator().manual_seed(7)
    shape = (2, NUM_BLOCKS, kv_heads, block_size, head_dim)
    keys, values = (torch.randn(shape, generator=generator).to(dtype) for _ in range(2))
    held = {name: _weight(name, data) for name, data in (weights or {}).items()}
    return KernelContext(held, torch.device("cpu"), dtype, list(torch.stack((keys, values), dim=1)), block_size)


@dataclass(frozen=True)
class Shape:
    """Of an attention and the cache that it reads."""

    heads: int
    kv_heads: int
    head_dim: int
    block_size: int

    def context(self, dtype: torch.dtype) -> KernelContext:
        """Two random caches of this shape."""
        return make_context(dtype, kv_heads=self.kv_heads, head_dim=self.head_dim, block_size=self.block_size)


def attention_over(cache: int = 0, heads: int = 6, kv_heads: int = 2, width: int = 8) -> Attention:
    """Attributes of an attention that fits make_context."""
    return Attention(cache, heads, kv_heads, width, width**-0.5)


def rope_into(cache: int = 0, heads: int = 6, kv_heads: int = 2, width: int = 8) -> RopeCache:
    """Attributes of a rope_cache that fits make_context."""
    return RopeCache(cache, heads, kv_heads, Rope(width, tuple(100.0 ** (-2 * i / width) for i in range(width // 2))))


def make_step(parts: Sequence[tuple[int, int]], block_size: int = 4) -> Step:
    """A step of sequences (rows, start), each over its own blocks in a shuffled order, those of one row first; the
    last row of each is wanted."""
    blocks = list(range(NUM_BLOCKS))
    random.Random(5).shuffle(blocks)
    sequences, first = [], 0
    for count, start in sorted(parts, key=lambda part: part[0] > 1):
        table = [blocks.pop() for _ in range(-(-(start + count) // block_size))]
        sequences.append(([(first + row) % 10 for row in range(count)], start, table))
        first += count
    return step_over(sequences, block_size, torch.device("cpu"))


def _weight(name: str, data: Tensor) -> Weight:
    matrix = data if data.dim() == 2 else data[None]
    return Weight(name, WeightFormat.F32, matrix.shape[0], matrix.shape[1], matrix)

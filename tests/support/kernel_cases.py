"""Contexts and steps for tests of kernels: random weights, a random KV cache, shuffled block tables."""

import random
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from polyfleet.kernels.context import KernelContext
from polyfleet.kernels.graph import GraphParams
from polyfleet.kernels.step import SliceRows, Step
from polyfleet.kernels.weights import Weight, WeightFormat

NUM_BLOCKS = 64


def make_context(
    dtype: torch.dtype = torch.float32,
    *,
    heads: int = 6,
    kv_heads: int = 2,
    head_dim: int = 8,
    block_size: int = 4,
    weights: Mapping[str, Tensor] | None = None,
) -> KernelContext:
    """Two layers whose cache holds random numbers everywhere."""
    generator = torch.Generator().manual_seed(7)
    frequencies = tuple(100.0 ** (-2 * i / head_dim) for i in range(head_dim // 2))
    params = GraphParams(2, heads, kv_heads, head_dim, 1e-5, frequencies, head_dim**-0.5)
    shape = (2, NUM_BLOCKS, kv_heads, block_size, head_dim)
    keys, values = (torch.randn(shape, generator=generator).to(dtype) for _ in range(2))
    held = {name: _weight(name, data) for name, data in (weights or {}).items()}
    return KernelContext(params, held, torch.device("cpu"), dtype, keys, values)


def make_step(parts: Sequence[tuple[int, int]], block_size: int = 4) -> Step:
    """A step of slices (rows, start), each over its own blocks in a shuffled order; the last row of each is wanted."""
    blocks = list(range(NUM_BLOCKS))
    random.Random(5).shuffle(blocks)
    slices, positions, slots, first = [], [], [], 0
    for count, start in parts:
        table = tuple(blocks.pop() for _ in range(-(-(start + count) // block_size)))
        slices.append(SliceRows(first, count, start, table))
        for position in range(start, start + count):
            positions.append(position)
            slots.append(table[position // block_size] * block_size + position % block_size)
        first += count
    ids = torch.arange(first) % 10
    last = [each.first + each.count - 1 for each in slices]
    return Step(ids, torch.tensor(positions), torch.tensor(slots), torch.tensor(last), tuple(slices))


def _weight(name: str, data: Tensor) -> Weight:
    matrix = data if data.dim() == 2 else data[None]
    return Weight(name, WeightFormat.F32, matrix.shape[0], matrix.shape[1], matrix)

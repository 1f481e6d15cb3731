"""The tensors that hold keys and values: a pair for each of a graph's caches, all cut into the same blocks."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from polyfleet.graph.kernel_graph import PerToken


def bytes_per_block(caches: Sequence[PerToken], block_size: int, dtype: torch.dtype) -> int:
    """Memory of one block over all caches, keys and values together."""
    return sum(2 * each.heads * each.width for each in caches) * block_size * dtype.itemsize


@dataclass(frozen=True, slots=True)
class KvStorage:
    """Keys and values of each cache, [num_blocks, heads, block_size, width]; every block is usable."""

    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]

    @classmethod
    def allocate(
        cls, caches: Sequence[PerToken], num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
    ) -> "KvStorage":
        """Zeroed storage: what no sequence wrote yet must be finite, because masked positions are multiplied by 0."""

        def zeros() -> tuple[Tensor, ...]:
            shapes = ((num_blocks, each.heads, block_size, each.width) for each in caches)
            return tuple(torch.zeros(shape, dtype=dtype, device=device) for shape in shapes)

        return cls(zeros(), zeros())

    def make_finite(self, blocks: tuple[int, ...]) -> None:
        """Replace what is not finite in these blocks by 0, so that their next owner can't meet it behind a mask."""
        for cache in (*self.keys, *self.values):
            index = torch.tensor(sorted(set(blocks)), device=cache.device)
            cache[index] = torch.nan_to_num(cache[index], nan=0.0, posinf=0.0, neginf=0.0)

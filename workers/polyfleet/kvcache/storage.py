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

    def clear(self, blocks: Tensor) -> None:
        """Make these blocks [n] 0 again: they may hold numbers that are not finite, which no mask hides."""
        for cache in (*self.keys, *self.values):
            cache.index_fill_(0, blocks, 0)

    def read(self, blocks: Tensor) -> tuple[Tensor, ...]:
        """Of each cache keys and values of these blocks [n] by position: [2, n * block_size, heads, width]."""
        return tuple(
            torch.stack([cache.index_select(0, blocks).transpose(1, 2).flatten(0, 1) for cache in pair])
            for pair in zip(self.keys, self.values, strict=True)
        )

    def write(self, blocks: Tensor, contents: Sequence[Tensor]) -> None:
        """Put back what `read` gave."""
        for pair, content in zip(zip(self.keys, self.values, strict=True), contents, strict=True):
            for cache, rows in zip(pair, content, strict=True):
                _, heads, block_size, width = cache.shape
                cache.index_copy_(0, blocks, rows.view(-1, block_size, heads, width).transpose(1, 2))

"""The tensors that hold keys and values, one for each of a graph's caches, all cut into the same blocks; and states."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from polyfleet.graph.kernel_graph import PerSlot, PerToken


def bytes_per_token(caches: Sequence[PerToken], dtype: torch.dtype) -> int:
    """Memory of one position over all caches, keys and values together."""
    return sum(each.sides * each.heads * each.width for each in caches) * dtype.itemsize


@dataclass(frozen=True, slots=True)
class KvStorage:
    """Each cache is one tensor [2, num_blocks, heads, block_size, width], keys before values; every block is usable.

    Of latent caches it is [1, …]. Each state is [slots, width] float32.
    """

    caches: tuple[Tensor, ...]
    states: tuple[Tensor, ...] = ()

    @classmethod
    def allocate(
        cls,
        caches: Sequence[PerToken],
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
        *,
        states: Sequence[PerSlot] = (),
        slots: int = 1,
    ) -> "KvStorage":
        """Zeroed storage: what no sequence wrote yet must be finite, because masked positions are multiplied by 0."""
        shapes = ((each.sides, num_blocks, each.heads, block_size, each.width) for each in caches)
        kept = tuple(torch.zeros((slots, each.width), device=device) for each in states)
        return cls(tuple(torch.zeros(shape, dtype=dtype, device=device) for shape in shapes), kept)

    def clear(self, blocks: Tensor) -> None:
        """Make these blocks [n] 0 again: they may hold numbers that are not finite, which no mask hides."""
        for cache in self.caches:
            cache.index_fill_(1, blocks, 0)

    def read(self, blocks: Tensor) -> tuple[Tensor, ...]:
        """Of each cache keys and values of these blocks [n] by position: [2, n * block_size, heads, width]."""
        return tuple(cache.index_select(1, blocks).transpose(2, 3).flatten(1, 2) for cache in self.caches)

    def write(self, blocks: Tensor, contents: Sequence[Tensor]) -> None:
        """Put back what `read` gave."""
        for cache, content in zip(self.caches, contents, strict=True):
            sides, _, heads, block_size, width = cache.shape
            cache.index_copy_(1, blocks, content.view(sides, -1, block_size, heads, width).transpose(2, 3))

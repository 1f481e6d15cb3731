"""The tensors that hold keys and values, one for each of a graph's caches, all cut into the same blocks; and states."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from polyfleet.graph.kernel_graph import PerSlot, PerToken
from polyfleet.kernels.cached import columns


def bytes_of(caches: Sequence[PerToken], chosen: Iterable[int], dtype: torch.dtype) -> int:
    """As `bytes_per_token`, of some caches."""
    return bytes_per_token([caches[each] for each in chosen], dtype)


def bytes_per_token(caches: Sequence[PerToken], dtype: torch.dtype) -> int:
    """Memory of one position over all caches, keys and values together."""
    return sum(each.sides * each.heads * columns(each.width, dtype) for each in caches) * dtype.itemsize


@dataclass(frozen=True, slots=True)
class KvStorage:
    """Each cache is one tensor [2, num_blocks, heads, block_size, width], keys before values; every block is usable.

    Of latent caches it is [1, …], and rows of codes are longer (see `kernels.cached`). Each state is [slots, width]
    float32. `local` caches have a pool of blocks of their own, whose numbers count on from the others' where both are
    told together.
    """

    caches: tuple[Tensor, ...]
    states: tuple[Tensor, ...] = ()
    local: frozenset[int] = frozenset()

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
        local: frozenset[int] = frozenset(),
        local_blocks: int = 0,
    ) -> "KvStorage":
        """Zeroed storage: what no sequence wrote yet must be finite, because masked positions are multiplied by 0."""
        local = local if local_blocks else frozenset()
        counts = [local_blocks if at in local else num_blocks for at in range(len(caches))]
        shapes = (
            (each.sides, count, each.heads, block_size, columns(each.width, dtype))
            for each, count in zip(caches, counts, strict=True)
        )
        kept = tuple(torch.zeros((slots, each.width), device=device) for each in states)
        return cls(tuple(torch.zeros(shape, dtype=dtype, device=device) for shape in shapes), kept, local)

    @property
    def first_local(self) -> int:
        """The number of the first `local` block, where the blocks of both pools are told together."""
        return next((cache.shape[1] for at, cache in enumerate(self.caches) if at not in self.local), 0)

    def clear(self, blocks: Tensor) -> None:
        """Make these blocks [n] 0 again: they may hold numbers that are not finite, which no mask hides."""
        local = blocks
        if self.local:
            first = self.first_local
            blocks, local = blocks[blocks < first], blocks[blocks >= first] - first
        for at, cache in enumerate(self.caches):
            cache.index_fill_(1, local if at in self.local else blocks, 0)

    def shapes(self, count: int, of_local: int) -> list[tuple[int, ...]]:
        """What `read` gives of `count` blocks, or of `of_local` ones: [2, count * block_size, heads, width]."""
        counts = (of_local if at in self.local else count for at in range(len(self.caches)))
        sizes = (cache.shape for cache in self.caches)
        return [
            (sides, blocks * block_size, heads, width)
            for blocks, (sides, _, heads, block_size, width) in zip(counts, sizes, strict=True)
        ]

    def read_flat(self, blocks: Tensor, local: Tensor | None = None) -> Tensor:
        """Of each cache keys and values of these blocks [n], or `local` ones, by position; all in one piece."""
        local = blocks if local is None else local
        shapes = self.shapes(len(blocks), len(local))
        like = self.caches[0]
        flat = torch.empty(sum(map(prod, shapes)), dtype=like.dtype, device=like.device)
        for at, (cache, part) in enumerate(zip(self.caches, parts_of(flat, shapes), strict=True)):
            sides, _, heads, block_size, width = cache.shape
            found = part.view(sides, part.shape[1] // block_size, block_size, heads, width)
            torch.index_select(cache, 1, local if at in self.local else blocks, out=found.transpose(2, 3))
        return flat

    def read(self, blocks: Tensor, local: Tensor | None = None) -> list[Tensor]:
        """`read_flat` by cache, [2, n * block_size, heads, width]."""
        shapes = self.shapes(len(blocks), len(blocks if local is None else local))
        return parts_of(self.read_flat(blocks, local), shapes)

    def write_flat(self, blocks: Tensor, flat: Tensor, local: Tensor | None = None) -> None:
        """Put back what `read_flat` gave."""
        self.write(blocks, parts_of(flat, self.shapes(len(blocks), len(blocks if local is None else local))), local)

    def write(self, blocks: Tensor, contents: Sequence[Tensor], local: Tensor | None = None) -> None:
        """Put back what `read` gave."""
        for at, (cache, content) in enumerate(zip(self.caches, contents, strict=True)):
            sides, _, heads, block_size, width = cache.shape
            numbers = blocks if local is None or at not in self.local else local
            parts = content.view(sides, len(numbers), block_size, heads, width)
            cache.transpose(2, 3).index_copy_(1, numbers, parts)

    def read_rows(self, blocks: Tensor, rows: Tensor) -> None:
        """Into rows [n, bytes] what `read_flat` gives of each of these blocks [n] alone; there is no second pool."""
        for cache, part in zip(self.caches, self._parts_of_rows(rows), strict=True):
            torch.index_select(cache.transpose(0, 1), 0, blocks, out=part.transpose(2, 3))

    def write_rows(self, blocks: Tensor, rows: Tensor) -> None:
        """Put back what `read_rows` gave."""
        for cache, part in zip(self.caches, self._parts_of_rows(rows), strict=True):
            cache.transpose(0, 1).index_copy_(0, blocks, part.transpose(2, 3))

    def _parts_of_rows(self, rows: Tensor) -> list[Tensor]:
        """Of each cache [n, sides, block_size, heads, width]."""
        shapes = [(sides, size, heads, width) for sides, _, heads, size, width in (each.shape for each in self.caches)]
        flat = rows.view(self.caches[0].dtype)
        parts = torch.split_with_sizes(flat, [prod(each) for each in shapes], dim=1)
        return [part.view(len(rows), *shape) for part, shape in zip(parts, shapes, strict=True)]


def parts_of(flat: Tensor, shapes: Sequence[tuple[int, ...]]) -> list[Tensor]:
    """What lies one behind the other."""
    parts = torch.split_with_sizes(flat, [prod(each) for each in shapes])
    return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]

"""HostTier: what blocks held that made way for others, in host memory, to be written back when it is wanted again."""

from collections import OrderedDict
from collections.abc import Sequence

import numpy as np

from polyfleet.kvcache.portable import DTYPES, Array, KvLayout


class HostTier:
    """Contents of at most `num_blocks` blocks by the hash that names each (`wire.hashing`), the least recently used
    go first. Memory is taken as it is needed. Not thread-safe."""

    def __init__(self, layout: KvLayout, block_size: int, num_blocks: int) -> None:
        self.num_blocks, self._block_size = num_blocks, block_size
        self._slots: OrderedDict[bytes, int] = OrderedDict()  # least recently used first
        self._free = list(range(num_blocks - 1, -1, -1))
        self._slabs = [
            np.empty((num_blocks, each.sides, block_size, each.heads, each.width), DTYPES[layout.dtype])
            for each in layout.caches
        ]

    def __len__(self) -> int:
        return len(self._slots)

    @staticmethod
    def bytes_of(layout: KvLayout, tokens: int) -> int:
        """Memory of so many tokens."""
        return tokens * layout.token_bytes

    def put(self, hashes: Sequence[bytes], caches: Sequence[Array]) -> None:
        """Keep blocks, of each cache [2, len(hashes) * block_size, kv heads, width]; of too many the first ones."""
        places, slots = list[int](), list[int]()
        for place, each in enumerate(hashes[: self.num_blocks]):
            if each in self._slots:
                self._slots.move_to_end(each)
                continue
            slot = self._free.pop() if self._free else self._slots.popitem(last=False)[1]
            self._slots[each] = slot
            places.append(place)
            slots.append(slot)
        if slots:
            for slab, cache in zip(self._slabs, caches, strict=True):
                sides, _, heads, width = cache.shape
                slab[slots] = cache.reshape(sides, -1, self._block_size, heads, width).swapaxes(0, 1)[places]

    def known(self, hashes: Sequence[bytes]) -> int:
        """How many of these blocks are here, from the first on."""
        return next((count for count, each in enumerate(hashes) if each not in self._slots), len(hashes))

    def get(self, hashes: Sequence[bytes]) -> tuple[Array, ...]:
        """The contents of blocks that are known, as `put` took them; used just now, the last one first."""
        for each in reversed(hashes):
            self._slots.move_to_end(each)
        slots = [self._slots[each] for each in hashes]
        return tuple(slab[slots].swapaxes(0, 1).reshape(slab.shape[1], -1, *slab.shape[3:]) for slab in self._slabs)

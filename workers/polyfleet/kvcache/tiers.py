"""HostTier: what blocks held that made way for others, in host memory, to be written back when it is wanted again."""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import numpy as np

from polyfleet.kvcache.portable import DTYPES, Array, KvLayout


class HostMemory(Protocol):
    """Room for blocks in host memory, in numbered rows. Caches are as `Executor.export_blocks` gives them.

    Whoever has rows sees to it that none is kept and read at once by different blocks.
    """

    def store(self, blocks: Sequence[int], rows: Sequence[int]) -> None:
        """Keep what blocks hold, whatever is written to them afterwards. No step under way writes them."""
        ...

    def load(self, rows: Sequence[int], blocks: Sequence[int]) -> None:
        """Put it back, behind every step so far; steps from now on find it there."""
        ...

    def there(self, row: int) -> bool:
        """Whether what was stored last has come, so that `read` does not wait."""
        ...

    def read(self, row: int) -> tuple[Array, ...]:
        """What a row holds, of each cache [2, block_size, kv heads, width]; the caller's to keep."""
        ...

    def write(self, row: int, caches: Sequence[Array]) -> None:
        """Have a row hold what `read` gave."""
        ...


class Slabs:
    """Rows in memory of numpy's, by way of what an executor gives and takes. Memory is taken as it is needed."""

    def __init__(
        self,
        layout: KvLayout,
        block_size: int,
        num_rows: int,
        give: Callable[[Sequence[int]], Sequence[Array]],
        take: Callable[[Sequence[int], Sequence[Array]], None],
    ) -> None:
        """`give` and `take`: of blocks, as `Executor.export_blocks` and `import_blocks`."""
        self._give, self._take, self._block_size = give, take, block_size
        self._slabs = [np.empty((num_rows, *shape), DTYPES[layout.dtype]) for shape in layout.shapes(block_size)]

    def store(self, blocks: Sequence[int], rows: Sequence[int]) -> None:
        """See HostMemory. Raises what `give` does, and has kept nothing then."""
        for slab, cache in zip(self._slabs, self._give(blocks), strict=True):
            sides, _, heads, width = cache.shape
            slab[list(rows)] = cache.reshape(sides, -1, self._block_size, heads, width).swapaxes(0, 1)

    def load(self, rows: Sequence[int], blocks: Sequence[int]) -> None:
        """See HostMemory. Raises what `take` does."""
        found = (slab[list(rows)].swapaxes(0, 1) for slab in self._slabs)
        self._take(blocks, [each.reshape(len(each), -1, *each.shape[3:]) for each in found])

    def there(self, row: int) -> bool:
        """Always."""
        return True

    def read(self, row: int) -> tuple[Array, ...]:
        """See HostMemory."""
        return tuple(slab[row].copy() for slab in self._slabs)

    def write(self, row: int, caches: Sequence[Array]) -> None:
        """See HostMemory."""
        for slab, cache in zip(self._slabs, caches, strict=True):
            slab[row] = cache


class HostTier:
    """Contents of at most `num_blocks` blocks by the hash that names each (`wire.hashing`), the least recently used
    go first. Not thread-safe."""

    def __init__(self, memory: HostMemory, num_blocks: int) -> None:
        """`memory` has as many rows."""
        self.num_blocks = num_blocks
        self.before_drop: Callable[[bytes], None] = lambda name: None  # called while what goes can still be read
        self._memory = memory
        self._rows: OrderedDict[bytes, int] = OrderedDict()  # least recently used first
        self._free = list(range(num_blocks - 1, -1, -1))
        self._held: frozenset[bytes] = frozenset()  # do not go

    def __len__(self) -> int:
        return len(self._rows)

    @staticmethod
    def bytes_of(layout: KvLayout, tokens: int) -> int:
        """Memory of so many tokens."""
        return tokens * layout.token_bytes

    def put(self, hashes: Sequence[bytes], blocks: Sequence[int]) -> list[bytes]:
        """Keep what blocks hold, of too many the first ones; which of them were not here. What fails keeps none."""
        added: dict[bytes, int] = {}
        places: list[int] = []
        try:
            for name, block in zip(hashes[: self.num_blocks], blocks, strict=False):
                if name in self._rows:
                    self._rows.move_to_end(name)
                elif (row := self._room()) is None:
                    break
                else:
                    self._rows[name] = added[name] = row
                    places.append(block)
            if places:
                self._memory.store(places, list(added.values()))
        except BaseException:
            for name, row in added.items():
                del self._rows[name]
                self._free.append(row)
            raise
        return list(added)

    def write(self, name: bytes, caches: Sequence[Array]) -> None:
        """Keep a block that was read elsewhere, where there is room."""
        if name not in self._rows and (row := self._room()) is not None:
            self._memory.write(row, caches)
            self._rows[name] = row

    def known(self, hashes: Sequence[bytes]) -> int:
        """How many of these blocks are here, from the first on."""
        return next((count for count, each in enumerate(hashes) if each not in self._rows), len(hashes))

    @contextmanager
    def holding(self, hashes: Sequence[bytes]) -> Iterator[None]:
        """Blocks that are known are used now, the last one first, and stay until then."""
        for each in reversed(hashes):
            self._rows.move_to_end(each)
        self._held = frozenset(hashes)
        try:
            yield
        finally:
            self._held = frozenset()

    def load(self, hashes: Sequence[bytes], blocks: Sequence[int]) -> None:
        """Put what is known back into blocks."""
        self._memory.load([self._rows[each] for each in hashes], blocks)

    def there(self, name: bytes) -> bool:
        """Whether `read` would not wait."""
        return self._memory.there(self._rows[name])

    def read(self, name: bytes) -> tuple[Array, ...]:
        """What is known of a block: of each cache [2, block_size, kv heads, width]."""
        return self._memory.read(self._rows[name])

    def _room(self) -> int | None:
        """A free row, that of the least recently used where there is none; None where that is held."""
        if self._free:
            return self._free.pop()
        name = next(iter(self._rows))
        if name in self._held:
            return None
        self.before_drop(name)
        return self._rows.pop(name)

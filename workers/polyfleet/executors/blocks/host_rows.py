"""Page-locked room for blocks in host memory: what a device evicts is copied there, and back, while steps go on."""

from collections.abc import Sequence
from functools import partial
from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polyfleet.executors.blocks.copies import COPY_SECONDS, BlockCopies
from polyfleet.executors.blocks.streams import Mark, Stream, wait_for
from polyfleet.kernels.cached import arriving, leaving
from polyfleet.kernels.step import upload
from polyfleet.kvcache.portable import Joined

PIECE_BYTES = 64 << 20  # of blocks that lie together on their way, or one block where that is larger
SLAB_BYTES = 256 << 20  # of host memory in one piece: torch rounds each up to a power of two
WAYS = 2  # streams each way: one copies over the bus while the other one gathers, or puts in place
STAGE_BYTES = 2 * WAYS * PIECE_BYTES  # that all this takes on the device


class _Way(NamedTuple):
    """A stream, and the device's memory by which blocks come and go on it."""

    stream: Stream
    stage: Tensor  # [blocks, bytes]


class HostRows:
    """A row for each block: cache after cache, as `KvStorage.read_rows` has it. See kvcache.tiers.HostMemory."""

    def __init__(self, copies: BlockCopies, count: int, *, pinned: bool = True) -> None:
        """Of a storage with one pool of blocks. Takes all its memory at once, for page-locking holds steps up.

        `pinned` is not so in tests, on machines without a device.
        """
        self._copies, self._moves = copies, copies.moves
        self._block_shapes, self._like = copies.storage.shapes(1, 0), copies.storage.caches[0].new_empty(0)
        row_bytes = sum(map(prod, self._block_shapes)) * self._like.itemsize
        self._per_slab = per_slab = max(1, SLAB_BYTES // row_bytes)
        lengths = (min(per_slab, count - first) for first in range(0, count, per_slab))
        self._slabs = [torch.empty((length, row_bytes), dtype=torch.uint8, pin_memory=pinned) for length in lengths]
        self._most = max(1, PIECE_BYTES // row_bytes)
        self._out, self._into = ([self._way(row_bytes) for _ in range(WAYS)] for _ in range(2))
        self._marks: list[Mark | None] = [None] * count  # behind the last copy of each row

    def store(self, blocks: Sequence[int], rows: Sequence[int]) -> None:
        """Keep what blocks hold that no step under way writes; whatever is written to them later waits for it."""
        for way, part in self._pieces(self._out, len(blocks)):
            mine, theirs = blocks[part], rows[part]
            self._copies.wait(way.stream, mine)
            self._copies.streams.do(way.stream, partial(self._gather, way, mine))
            self._copies.mark(way.stream, mine)
            self._behind(way.stream, theirs)
            self._copies.streams.do(way.stream, partial(self._leave, way, theirs))
            self._mark(way.stream, theirs)

    def load(self, rows: Sequence[int], blocks: Sequence[int]) -> None:
        """Put back into blocks what rows hold; steps with these blocks wait for it, no others do."""
        for way, part in self._pieces(self._into, len(blocks)):
            theirs, mine = rows[part], blocks[part]
            self._behind(way.stream, theirs)
            self._copies.streams.do(way.stream, partial(self._come, way, theirs))
            self._mark(way.stream, theirs)
            self._copies.wait_for_steps(way.stream)
            self._copies.wait(way.stream, mine)
            self._copies.streams.do(way.stream, partial(self._place, way, mine))
            self._copies.mark(way.stream, mine)

    def close(self) -> None:
        """Give all memory back; copies under way still have theirs."""
        del self._copies, self._moves, self._slabs, self._out, self._into

    def there(self, row: int) -> bool:
        """Whether no copy of a row is under way."""
        mark = self._marks[row]
        return mark is None or mark.query()

    def read(self, row: int) -> tuple[NDArray[Any], ...]:
        """What a row holds as `Executor.export_blocks` gives it; waits for it."""
        held = leaving(self._held(row).view(self._like.dtype).clone(), self._copies.dtype).numpy()
        return Joined.of(held.data.cast("B"), self._block_shapes, held.dtype)

    def write(self, row: int, caches: Sequence[NDArray[Any]]) -> None:
        """Have a row hold what `read` gave; waits for copies of it."""
        given = torch.from_numpy(np.concatenate([each.reshape(-1) for each in caches]).view(np.uint8))
        self._held(row).copy_(arriving(given, self._like, self._copies.dtype).view(torch.uint8))

    def _way(self, row_bytes: int) -> _Way:
        stage = torch.empty((self._most, row_bytes), dtype=torch.uint8, device=self._copies.device)
        return _Way(self._copies.streams.new(), stage)

    def _pieces(self, ways: list[_Way], count: int) -> list[tuple[_Way, slice]]:
        firsts = range(0, count, self._most)
        return [(ways[turn % WAYS], slice(first, first + self._most)) for turn, first in enumerate(firsts)]

    def _row(self, row: int) -> Tensor:
        found: Tensor = self._slabs[row // self._per_slab][row % self._per_slab]
        return found

    def _held(self, row: int) -> Tensor:
        """The bytes of a row that nobody else touches."""
        if (mark := self._marks[row]) is not None:
            wait_for(mark, COPY_SECONDS, "a copy of blocks")
            self._marks[row] = None
        return self._row(row)

    def _behind(self, stream: Stream, rows: Sequence[int]) -> None:
        found = {id(mark): mark for row in rows if (mark := self._marks[row]) is not None}
        for mark in found.values():
            stream.wait_event(mark)

    def _mark(self, stream: Stream, rows: Sequence[int]) -> None:
        mark: Mark = stream.record_event()
        for row in rows:
            self._marks[row] = mark

    def _gather(self, way: _Way, blocks: Sequence[int]) -> None:
        self._moves.read_rows(self._uploaded(blocks), way.stage[: len(blocks)])

    def _leave(self, way: _Way, rows: Sequence[int]) -> None:
        for place, row in enumerate(rows):
            self._row(row).copy_(way.stage[place], non_blocking=True)

    def _come(self, way: _Way, rows: Sequence[int]) -> None:
        for place, row in enumerate(rows):
            way.stage[place].copy_(self._row(row), non_blocking=True)

    def _place(self, way: _Way, blocks: Sequence[int]) -> None:
        self._moves.write_rows(self._uploaded(blocks), way.stage[: len(blocks)])

    def _uploaded(self, blocks: Sequence[int]) -> Tensor:
        return upload(np.array(blocks, dtype=np.int64), self._copies.device)

"""Exchange: gives cached beginnings of prompts to other engines, and takes theirs; see docs/kv-layout.md."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np

from polyfleet.engine.batching.holdings import Holdings
from polyfleet.engine.executor import BlockImport, Executor
from polyfleet.engine.travel.writer import Writer, Writing
from polyfleet.kvcache.portable import BLOCK_TOKENS, Array, Buffer, KvLayout, KvPrefix, pack, unpack
from polyfleet.wire.hashing import ROOT_HASH, chain_hashes, prefix_root


@dataclass(eq=False, slots=True)
class Addition:
    """What is being written to blocks that follow on a chain's cached ones: `hashes` with them; blocks of each lane."""

    hashes: list[bytes]
    held: list[list[int]]  # those that were cached when it began
    first: int  # the number in the chain of the blocks that are written
    blocks: list[list[int]]
    writing: Writing


class Exchange:
    """Between the blocks that Holdings know and portable documents. Steps may be under way; nothing waits for them.

    Only blocks in the PrefixIndex leave: steps that filled them are over. What arrives is written to free blocks,
    behind every step so far, and cached. Not thread-safe.
    """

    def __init__(self, holdings: Holdings, executor: Executor, fingerprint: str) -> None:
        self._holdings = holdings
        self.executor = executor
        self._fingerprint = fingerprint
        self._layout: KvLayout | None = None
        self._writer = Writer()

    def export_prefix(self, token_ids: Sequence[int], salt: bytes = b"") -> bytes:
        """The document of the longest cached beginning, perhaps of no token at all."""
        hashes = self.chain(token_ids, salt)
        num_tokens = self.known_tokens(hashes) // BLOCK_TOKENS * BLOCK_TOKENS
        caches = self.read(hashes, 0, num_tokens)
        layout = KvLayout.of(self._fingerprint, caches)
        return pack(layout, KvPrefix(tuple(token_ids[:num_tokens]), caches), salt)

    def import_prefix(self, data: Buffer, salt: bytes = b"") -> int:
        """Cache the beginning that a document holds, as much of it as there are free blocks for.

        Returns how many of its tokens are cached then, those that were before included. Raises ValueError, and takes
        nothing, for a document that is damaged, or of another model, tenant or layout.
        """
        prefix = unpack(data, self.layout, salt)
        if not self._holdings.prefix_cache:
            return 0
        return self.add(self.chain(prefix.token_ids, salt), 0, prefix.caches)

    @property
    def keeps(self) -> bool:
        """Whether what is computed is cached, so that it can be read."""
        return self._holdings.prefix_cache

    @property
    def layout(self) -> KvLayout:
        """Whose keys and values these are, and how they are stored here."""
        if self._layout is None:
            self._layout = KvLayout.of(self._fingerprint, self.executor.export_blocks(()))
        return self._layout

    def known_tokens(self, hashes: list[bytes]) -> int:
        """How many tokens of a chain's beginning are cached."""
        return len(self._holdings.known(hashes)[0]) * self._holdings.block_size

    @cached_property
    def host_buffers(self) -> Callable[[int], memoryview] | None:
        """Makes memory, on any thread, from which what arrives is taken in without a copy; None: it makes none."""
        found = getattr(self.executor, "host_buffers", None)
        return found and found()

    def read(self, hashes: list[bytes], first: int, end: int) -> tuple[Array, ...]:
        """Keys and values of a chain's positions `first` to `end`, which must be cached: [2, end - first, …]."""
        return self.begin_read(hashes, first, end)()

    def begin_read(self, hashes: list[bytes], first: int, end: int) -> Callable[[], tuple[Array, ...]]:
        """What gives them, on any thread: it waits for the device, where that copies beside the host."""
        block_size = self._holdings.block_size
        start = first // block_size
        blocks = [each[: -(-end // block_size)] for each in self._holdings.known(hashes)]
        self._share(blocks)  # from the chain's first on, so that none becomes younger than what it hangs on
        begin = getattr(self.executor, "begin_export", None)
        wanted, part = [each[start:] for each in blocks], slice(first - start * block_size, end - start * block_size)
        try:
            arrived = begin(*wanted) if begin else partial(tuple, self.executor.export_blocks(*wanted))
        finally:
            self._release(blocks)
        if (part.start, part.stop) == (0, len(wanted[0]) * block_size):
            return arrived  # as it lies
        return lambda: tuple(each[:, part] for each in arrived())

    def add(self, hashes: list[bytes], start: int, caches: Sequence[Array]) -> int:
        """Cache what stands behind a chain's first `start` tokens, which `caches` begin with, as far as there is room.

        Returns how many tokens of the chain are cached then; no more than before where some before these are not.
        """
        hashes = self._within(hashes, start, caches)

        def write(blocks: list[list[int]], first: int) -> None:
            self._write(blocks, self._part(caches, first - start // self._holdings.block_size, len(blocks[0])))

        return self.fill(hashes, start, write)

    def begin_add(
        self, hashes: list[bytes], start: int, caches: Sequence[Array], read: Callable[[], None] = lambda: None
    ) -> Addition:
        """`add` but for the writing, which goes on beside steps where the executor has that; `caches` stay until `read`
        is called, on whatever thread, unless this raises.

        What stands before may be on its way so. `end_add` all of a chain in the order in which they began.
        """
        hashes = self._within(hashes, start, caches)
        held = self._holdings.known(hashes)
        self._share(held)
        first = max(len(held[0]), start // self._holdings.block_size)
        blocks = self._allocated(len(hashes) - first)
        holding = [each + more for each, more in zip(held, blocks, strict=True)]
        part = self._part(caches, first - start // self._holdings.block_size, len(blocks[0]))
        try:
            writing = self._begin_writing(blocks, part, read)
        except Exception:
            self._release(holding)
            raise
        addition = Addition(hashes, held, first, blocks, writing)
        self._holdings.arriving[addition] = holding
        return addition

    def _begin_writing(self, blocks: list[list[int]], caches: Sequence[Array], read: Callable[[], None]) -> Writing:
        """By the executor beside its steps, if it can; else it is over when this returns."""
        found: BlockImport | None = None
        if blocks[0]:
            self._holdings.before_write()
            for lane, each in zip(self._holdings.lanes, blocks, strict=True):
                lane.written(each)  # so that no step clears them meanwhile
            begin = getattr(self.executor, "begin_import", None)
            found = begin(*blocks) if begin is not None else None
        writing = Writing(found or BlockImport(lambda given: self._write(blocks, given)), caches, read)
        if found is None:
            writing.run()
        else:
            self._writer.give(writing)
        return writing

    def _write(self, blocks: list[list[int]], caches: Sequence[Array]) -> None:
        if blocks[0]:
            self.executor.import_blocks(blocks[0], caches, *blocks[1:])

    def end_add(self, addition: Addition) -> int:
        """Cache what was written, which this waits for; returns as `add` does. Raises what writing raised."""
        addition.writing.wait()
        error = addition.writing.error
        first, hashes, blocks = addition.first, addition.hashes, addition.blocks
        count = len(addition.held[0])
        between = self._holdings.known(hashes[count:first])
        self._share(between)  # what has been added meanwhile
        held = [each + more for each, more in zip(addition.held, between, strict=True)]
        try:
            if error is None and len(held[0]) == first:
                self._publish(hashes, first, blocks)
                return (first + len(blocks[0])) * self._holdings.block_size
        finally:
            self._leave(addition, between, doubtful=error is not None)
        if error is not None:
            raise error
        return len(held[0]) * self._holdings.block_size

    def drop(self, addition: Addition) -> None:
        """It is not wanted any more: waits until nothing is written to its blocks."""
        addition.writing.wanted = False
        addition.writing.wait()
        self._leave(addition, [[] for _ in addition.blocks], doubtful=True)

    def _leave(self, addition: Addition, between: list[list[int]], *, doubtful: bool) -> None:
        """Give back what an addition has held, all of it in the chain's order."""
        del self._holdings.arriving[addition]
        addition.writing.importing.end()
        if doubtful:
            self._clear(addition.blocks)
        parts = zip(addition.held, between, addition.blocks, strict=True)
        self._release([held + more + blocks for held, more, blocks in parts])

    def close(self) -> None:
        """Nothing is written any more."""
        self._writer.close()

    def fill(self, hashes: list[bytes], start: int, write: Callable[[list[list[int]], int], None]) -> int:
        """As `add`, of what `write` puts into blocks: of each lane those of the chain from a number on."""
        held = self._holdings.known(hashes)
        self._share(held)  # lest making room for the others evicts them
        try:
            if len(held[0]) * self._holdings.block_size >= start:
                taken = self._taken(hashes, len(held[0]), write)
                held = [each + more for each, more in zip(held, taken, strict=True)]
        finally:
            self._release(held)
        return len(held[0]) * self._holdings.block_size

    def _taken(self, hashes: list[bytes], first: int, write: Callable[[list[list[int]], int], None]) -> list[list[int]]:
        """Of each lane the blocks `first` … of a chain, written and published; the caller holds them."""
        blocks = self._allocated(len(hashes) - first)
        if not blocks[0]:
            return blocks
        try:
            self._holdings.before_write()
            write(blocks, first)
        except Exception:
            self._clear(blocks)  # whatever was written
            self._release(blocks)
            raise
        for lane, each in zip(self._holdings.lanes, blocks, strict=True):
            lane.written(each)
        self._publish(hashes, first, blocks)
        return blocks

    def _allocated(self, count: int) -> list[list[int]]:
        """So many blocks of each lane, or as many as all have."""
        lanes = self._holdings.lanes
        count = min(count, *(lane.pool.num_free for lane in lanes))
        return [lane.pool.allocate(count) or [] for lane in lanes]

    def _publish(self, hashes: list[bytes], first: int, blocks: list[list[int]]) -> None:
        """Of each lane blocks that are written, `first` … of a chain, of which the caller holds all before."""
        for lane, each in zip(self._holdings.lanes, blocks, strict=True):
            for at, index in enumerate(range(first, first + len(each))):
                parent = hashes[index - 1] if index else ROOT_HASH
                each[at] = lane.prefixes.publish(hashes[index], parent, each[at])

    def _clear(self, blocks: list[list[int]]) -> None:
        for lane, each in zip(self._holdings.lanes, blocks, strict=True):
            lane.clear(each)

    def _within(self, hashes: list[bytes], start: int, caches: Sequence[Array]) -> list[bytes]:
        """Of a chain what `caches` reach to, which begin at position `start`."""
        return hashes[: (start + caches[0].shape[1]) // self._holdings.block_size] if caches else hashes

    def _part(self, caches: Sequence[Array], first: int, count: int) -> Sequence[Array]:
        """Of what lies in `caches` so many blocks, from a number on; as it lies, where that is all."""
        block_size = self._holdings.block_size
        begin, tokens = first * block_size, count * block_size
        if all(each.shape[1] == tokens for each in caches):
            return caches
        return [np.ascontiguousarray(each[:, begin : begin + tokens]) for each in caches]

    def _share(self, blocks: list[list[int]]) -> None:
        for lane, each in zip(self._holdings.lanes, blocks, strict=True):
            for block in each:
                lane.pool.share(block)

    def _release(self, blocks: list[list[int]]) -> None:
        for lane, each in zip(self._holdings.lanes, blocks, strict=True):
            lane.pool.release(each)

    def chain(self, token_ids: Sequence[int], salt: bytes) -> list[bytes]:
        """The hashes that name a prompt's beginnings here."""
        return list(chain_hashes(token_ids, self._holdings.block_size, prefix_root(self._fingerprint, salt)))

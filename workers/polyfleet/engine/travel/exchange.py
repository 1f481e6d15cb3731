"""Exchange: gives cached beginnings of prompts to other engines, and takes theirs; see docs/kv-layout.md."""

from collections.abc import Callable, Sequence
from functools import cached_property, partial

import numpy as np

from polyfleet.engine.batching.holdings import Holdings
from polyfleet.engine.executor import Executor
from polyfleet.kvcache.portable import BLOCK_TOKENS, Array, Buffer, KvLayout, KvPrefix, pack, unpack
from polyfleet.wire.hashing import ROOT_HASH, chain_hashes, prefix_root


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
        return lambda: tuple(each[:, part] for each in arrived())

    def add(self, hashes: list[bytes], start: int, caches: Sequence[Array]) -> int:
        """Cache what stands behind a chain's first `start` tokens, which `caches` begin with, as far as there is room.

        Returns how many tokens of the chain are cached then; no more than before where some before these are not.
        """
        block_size = self._holdings.block_size
        if caches:
            hashes = hashes[: (start + caches[0].shape[1]) // block_size]

        def write(blocks: list[list[int]], first: int) -> None:
            begin, tokens = first * block_size - start, len(blocks[0]) * block_size
            contents = caches  # as they lie, where all are written
            if any(each.shape[1] != tokens for each in caches):
                contents = [np.ascontiguousarray(each[:, begin : begin + tokens]) for each in caches]
            self.executor.import_blocks(blocks[0], contents, *blocks[1:])

        return self.fill(hashes, start, write)

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
        lanes = self._holdings.lanes
        count = min(len(hashes) - first, *(lane.pool.num_free for lane in lanes))
        blocks = [lane.pool.allocate(count) or [] for lane in lanes]
        if not count:
            return blocks
        try:
            self._holdings.before_write()
            write(blocks, first)
        except Exception:
            for lane, each in zip(lanes, blocks, strict=True):
                lane.clear(each)  # whatever was written
            self._release(blocks)
            raise
        for lane, each in zip(lanes, blocks, strict=True):
            lane.written(each)
            for at, index in enumerate(range(first, first + count)):
                parent = hashes[index - 1] if index else ROOT_HASH
                each[at] = lane.prefixes.publish(hashes[index], parent, each[at])
        return blocks

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

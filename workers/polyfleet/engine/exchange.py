"""Exchange: gives cached beginnings of prompts to other engines, and takes theirs; see docs/kv-layout.md."""

from collections.abc import Sequence

from polyfleet.engine.executor import Executor
from polyfleet.engine.holdings import Holdings
from polyfleet.kvcache.portable import BLOCK_TOKENS, Buffer, KvLayout, KvPrefix, pack, unpack
from polyfleet.wire.hashing import ROOT_HASH, chain_hashes, prefix_root


class Exchange:
    """Between the blocks that Holdings know and portable documents. Steps may be under way; nothing waits for them.

    Only blocks in the PrefixIndex leave: steps that filled them are over. What arrives is written to free blocks,
    behind every step so far, and cached. Not thread-safe.
    """

    def __init__(self, holdings: Holdings, executor: Executor, fingerprint: str) -> None:
        self._holdings = holdings
        self._executor = executor
        self._fingerprint = fingerprint

    def export_prefix(self, token_ids: Sequence[int], salt: bytes = b"") -> bytes:
        """The document of the longest cached beginning, perhaps of no token at all."""
        block_size = self._holdings.block_size
        found = self._holdings.known(self._chain(token_ids, salt))
        num_tokens = len(found[0]) * block_size // BLOCK_TOKENS * BLOCK_TOKENS
        blocks = [each[: -(-num_tokens // block_size)] for each in found]
        self._share(blocks)
        try:
            caches = self._executor.export_blocks(*blocks)
        finally:
            self._release(blocks)
        layout = KvLayout.of(self._fingerprint, caches)
        prefix = KvPrefix(tuple(token_ids[:num_tokens]), tuple(each[:, :num_tokens] for each in caches))
        return pack(layout, prefix, salt)

    def import_prefix(self, data: Buffer, salt: bytes = b"") -> int:
        """Cache the beginning that a document holds, as much of it as there are free blocks for.

        Returns how many of its tokens are cached then, those that were before included. Raises ValueError, and takes
        nothing, for a document that is damaged, or of another model, tenant or layout.
        """
        prefix = unpack(data, KvLayout.of(self._fingerprint, self._executor.export_blocks(())), salt)
        if not self._holdings.prefix_cache:
            return 0
        hashes = self._chain(prefix.token_ids, salt)
        held = self._holdings.known(hashes)
        self._share(held)  # lest making room for the others evicts them
        try:
            taken = self._taken(prefix, hashes, len(held[0]))
            held = [each + more for each, more in zip(held, taken, strict=True)]
        finally:
            self._release(held)
        return len(held[0]) * self._holdings.block_size

    def _taken(self, prefix: KvPrefix, hashes: list[bytes], first: int) -> list[list[int]]:
        """Of each lane the blocks `first` … of a prefix, written and published; the caller holds them."""
        lanes, block_size = self._holdings.lanes, self._holdings.block_size
        count = min(len(hashes) - first, *(lane.pool.num_free for lane in lanes))
        blocks = [lane.pool.allocate(count) or [] for lane in lanes]
        if not count:
            return blocks
        start, end = first * block_size, (first + count) * block_size
        try:
            caches = [each[:, start:end].copy() for each in prefix.caches]
            self._executor.import_blocks(blocks[0], caches, *blocks[1:])
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

    def _chain(self, token_ids: Sequence[int], salt: bytes) -> list[bytes]:
        return list(chain_hashes(token_ids, self._holdings.block_size, prefix_root(self._fingerprint, salt)))

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
        pool, block_size = self._holdings.pool, self._holdings.block_size
        found = self._holdings.prefixes.find(self._chain(token_ids, salt))
        num_tokens = len(found) * block_size // BLOCK_TOKENS * BLOCK_TOKENS
        blocks = found[: -(-num_tokens // block_size)]
        for block in blocks:
            pool.share(block)
        try:
            caches = self._executor.export_blocks(blocks)
        finally:
            pool.release(blocks)
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
        pool = self._holdings.pool
        hashes = self._chain(prefix.token_ids, salt)
        held = self._holdings.prefixes.find(hashes)
        for block in held:
            pool.share(block)  # lest making room for the others evicts them
        try:
            held += self._taken(prefix, hashes, len(held))
        finally:
            pool.release(held)
        return len(held) * self._holdings.block_size

    def _taken(self, prefix: KvPrefix, hashes: list[bytes], first: int) -> list[int]:
        """Blocks `first` … of a prefix, written and published; the caller holds them."""
        holdings, block_size = self._holdings, self._holdings.block_size
        blocks = holdings.pool.allocate(min(len(hashes) - first, holdings.pool.num_free)) or []
        if not blocks:
            return []
        start, end = first * block_size, (first + len(blocks)) * block_size
        try:
            self._executor.import_blocks(blocks, [each[:, start:end].copy() for each in prefix.caches])
        except Exception:
            holdings.assembler.clear(blocks)  # whatever was written
            holdings.pool.release(blocks)
            raise
        holdings.assembler.written(blocks)
        for index, block in enumerate(blocks, first):
            holdings.prefixes.publish(hashes[index], hashes[index - 1] if index else ROOT_HASH, block)
        return blocks

    def _chain(self, token_ids: Sequence[int], salt: bytes) -> list[bytes]:
        return list(chain_hashes(token_ids, self._holdings.block_size, prefix_root(self._fingerprint, salt)))

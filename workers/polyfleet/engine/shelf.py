"""Shelf: puts blocks that are evicted into host memory, and back into the pool when a sequence begins with them."""

import logging

from polyfleet.backends.cpu import CpuBackend
from polyfleet.engine.exchange import Exchange
from polyfleet.engine.executor import DeviceTimeout
from polyfleet.engine.holdings import Holdings
from polyfleet.engine.sequence import Sequence
from polyfleet.kvcache.tiers import HostTier
from polyfleet.wire.limits import FieldError

log = logging.getLogger(__name__)
LEAST_BLOCKS = 2  # fewer are computed


class Shelf:
    """Between a pool of blocks and a HostTier. Evicted blocks are read before anything is written to them."""

    def __init__(self, holdings: Holdings, exchange: Exchange, tier: HostTier) -> None:
        self.restored_tokens = 0
        self._holdings, self._exchange, self._tier = holdings, exchange, tier
        self._evicted: list[tuple[bytes, int]] = []
        holdings.prefixes.on_forget = lambda chain_hash, block: self._evicted.append((chain_hash, block))
        holdings.before_write, holdings.before_start = self._store, self._restore

    @property
    def num_blocks(self) -> int:
        """That it holds."""
        return len(self._tier)

    def _store(self) -> None:
        """Something is about to be written to blocks: those that were evicted are kept, the last one first."""
        if not self._evicted:
            return
        evicted, self._evicted = self._evicted[::-1], []
        try:
            hashes, blocks = zip(*evicted, strict=True)
            self._tier.put(hashes, self._exchange.contents(blocks))
        except DeviceTimeout:
            raise
        except Exception:
            log.exception("Evicted KV blocks could not be kept in host memory.")

    def _restore(self, sequence: Sequence) -> None:
        """Put back what follows on the blocks that a sequence finds in the pool, as far as there is room for it."""
        holdings = self._holdings
        count = (sequence.num_tokens - 1) // holdings.block_size
        if not len(self._tier) or not sequence.reads_prefix or holdings.lanes[0].pool.num_free < count + 1:
            return
        hashes = sequence.chain(count, holdings.block_size)
        first = len(holdings.known(hashes)[0])
        found = self._tier.known(hashes[first:])
        if found < LEAST_BLOCKS:
            return
        start, hashes = first * holdings.block_size, hashes[: first + found]
        try:
            tokens = self._exchange.add(hashes, start, self._tier.get(hashes[first:]))
        except DeviceTimeout:
            raise
        except Exception:
            log.exception("KV blocks in host memory could not be written back.")
        else:
            self.restored_tokens += max(0, tokens - start)


def shelf_of(holdings: Holdings, exchange: Exchange, tokens: int) -> Shelf | None:
    """With room for so many tokens; None for none, and where prefixes are not kept, or in two pools.

    Raises FieldError where the host has no memory for them.
    """
    if not tokens or not holdings.prefix_cache or exchange.layout.caches == ():
        return None
    if len(holdings.lanes) > 1:
        log.warning("host_cache_tokens has no effect: this model keeps its prefixes in two pools.")
        return None
    needed, free = HostTier.bytes_of(exchange.layout, tokens), CpuBackend().memory().free_bytes
    if needed > free:
        problem = f"needs {needed / 2**20:.0f} MiB of host memory, of which {free / 2**20:.0f} MiB are free"
        raise FieldError("host_cache_tokens", problem)
    return Shelf(holdings, exchange, HostTier(exchange.layout, holdings.block_size, -(-tokens // holdings.block_size)))

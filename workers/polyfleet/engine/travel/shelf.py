"""Shelf: puts blocks that are evicted into host memory, and back into the pool when a sequence begins with them.

What goes there goes to local disk too, where the options name a directory, and comes back by way of host memory: a
sequence waits while its beginning is read, and all others go on.
"""

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from polyfleet.backends.cpu import CpuBackend
from polyfleet.engine.batching.holdings import Holdings
from polyfleet.engine.executor import DeviceTimeout, Executor
from polyfleet.engine.step.sequence import Sequence, SequenceState
from polyfleet.engine.travel.exchange import Exchange
from polyfleet.engine.travel.pace import Pace
from polyfleet.kvcache.disk import DiskRead, DiskTier
from polyfleet.kvcache.portable import KvLayout
from polyfleet.kvcache.tiers import HostMemory, HostTier, Slabs
from polyfleet.kvcache.travelling import DISK_PROBLEMS
from polyfleet.wire.limits import FieldError
from polyfleet.wire.options import EngineOptions

log = logging.getLogger(__name__)
LEAST_BLOCKS = 2  # fewer are computed
READ_SECONDS = (0.5, 30.0)  # that a beginning may be read from disk, whatever computing takes
NOTHING: tuple[int, int, int, int, tuple[int, ...]] = (0, 0, 0, 0, ())  # the counts where there is no shelf


class _Return(NamedTuple):
    """A sequence that waits for its beginning, which is read from disk."""

    sequence: Sequence
    read: DiskRead
    began: float
    until: float


class Shelf:
    """Between a pool of blocks and a HostTier. Evicted blocks are kept before anything is written to them.

    What was kept goes on to disk a block a step, once it has come to host memory; what makes way there goes at once.
    """

    def __init__(
        self,
        holdings: Holdings,
        exchange: Exchange,
        tier: HostTier,
        disk: DiskTier | None = None,
        prefill_rate: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """`prefill_rate`: tokens a second that this engine computes; 0: not known."""
        self.restored_tokens = self.read_tokens = 0  # put back into the pool; read from disk
        self._holdings, self._exchange, self._tier, self._disk = holdings, exchange, tier, disk
        self._prefill_rate, self._pace, self._returns = prefill_rate, Pace(), list[_Return]()
        self._evicted: list[tuple[bytes, int]] = []
        self._unsaved: dict[bytes, None] = {}  # in host memory, not on disk; in the order of their coming
        tier.before_drop = self._save
        holdings.prefixes.on_forget = lambda chain_hash, block: self._evicted.append((chain_hash, block))
        holdings.before_write, holdings.before_start = self._store, self._restore

    @property
    def counts(self) -> tuple[int, int, int, int, tuple[int, ...]]:
        """As the fields of EngineStatus."""
        disk = self._disk
        blocks, problems = (len(disk), disk.problems) if disk is not None else (0, dict[str, int]())
        problem_counts = tuple(problems.get(each, 0) for each in DISK_PROBLEMS)
        return self.restored_tokens, len(self._tier), self.read_tokens, blocks, problem_counts

    def begin(self, sequence: Sequence) -> None:
        """Read a waiting sequence's beginning from disk, as far as it is there alone, where that is likely to pay."""
        if self._disk is None or not len(self._disk) or not sequence.reads_prefix or sequence.images is not None:
            return
        size = self._holdings.block_size
        hashes = sequence.chain((sequence.num_tokens - 1) // size, size)
        first = len(self._holdings.known(hashes)[0])
        first += self._tier.known(hashes[first:])
        count = min(self._disk.known(hashes[first:]), self._tier.num_blocks - first)
        rate = self._prefill_rate()
        if count < LEAST_BLOCKS or self._pace.slower_than(rate):
            return
        least, most = READ_SECONDS
        now, seconds = time.monotonic(), min(max(least, count * size / rate), most) if rate else most
        sequence.arriving = True
        self._returns.append(_Return(sequence, self._disk.read(hashes[first : first + count]), now, now + seconds))

    @property
    def has_work(self) -> bool:
        """Whether something waits to be written to disk."""
        return bool(self._unsaved)

    def advance(self) -> None:
        """Take in what has been read; sequences whose beginning is there may start. Write a block to disk."""
        if self._returns:
            self._returns = [each for each in self._returns if self._take(each)]
        if self._unsaved and self._tier.there(oldest := next(iter(self._unsaved))):
            self._save(oldest)

    def close(self) -> None:
        """Write to disk what waits for it."""
        if self._disk is not None:
            for each in list(self._unsaved):
                self._save(each)
            self._disk.close()

    def _save(self, name: bytes) -> None:
        """To disk, unless it is there."""
        if name in self._unsaved and self._disk is not None:
            del self._unsaved[name]
            self._disk.put(name, self._tier.read(name))

    def _take(self, waiting: _Return) -> bool:
        """What has been read for one; False when that is all."""
        sequence, read, began, until = waiting
        over = read.over  # before the last block is looked for
        while (found := read.take()) is not None:
            self._tier.write(*found)
            self.read_tokens += self._holdings.block_size
        late = time.monotonic() > until
        if not over and not late and sequence.state is SequenceState.WAITING:
            return True
        if late and self._disk is not None:
            self._disk.problems["slow"] += 1
        read.abandoned, sequence.arriving = True, False
        self._pace.learn(len(read.names) * self._holdings.block_size, time.monotonic() - began)
        return False

    def _store(self) -> None:
        """Something is about to be written to blocks: those that were evicted are kept, the last one first."""
        if not self._evicted:
            return
        evicted, self._evicted = self._evicted[::-1], []
        try:
            kept = self._tier.put(*zip(*evicted, strict=True))
        except DeviceTimeout:
            raise
        except Exception:
            log.exception("Evicted KV blocks could not be kept in host memory.")
            return
        if self._disk is not None:
            self._unsaved.update(dict.fromkeys(kept))

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

        def write(blocks: list[list[int]], at: int) -> None:
            self._tier.load(hashes[at : at + len(blocks[0])], blocks[0])

        try:
            with self._tier.holding(hashes[first:]):
                tokens = self._exchange.fill(hashes, start, write)
        except DeviceTimeout:
            raise
        except Exception:
            log.exception("KV blocks in host memory could not be written back.")
        else:
            self.restored_tokens += max(0, tokens - start)


def shelf_of(
    holdings: Holdings, exchange: Exchange, options: EngineOptions, prefill_rate: Callable[[], float]
) -> Shelf | None:
    """As the options have it; None for none, and where prefixes are not kept, or in two pools.

    Raises FieldError where the host has no memory for them, or the disk no host memory before it.
    """
    tokens = options.host_cache_tokens
    if options.disk_cache_dir and not tokens:
        raise FieldError("disk_cache_dir", "needs host_cache_tokens: what is on disk comes back by way of host memory")
    if not tokens or not holdings.prefix_cache or exchange.layout.caches == ():
        return None
    if len(holdings.lanes) > 1:
        log.warning("host_cache_tokens has no effect: this model keeps its prefixes in two pools.")
        return None
    needed, free = HostTier.bytes_of(exchange.layout, tokens), CpuBackend().memory().free_bytes
    if needed > free:
        problem = f"needs {needed / 2**20:.0f} MiB of host memory, of which {free / 2**20:.0f} MiB are free"
        raise FieldError("host_cache_tokens", problem)
    num_blocks = -(-tokens // holdings.block_size)
    tier = HostTier(_memory_of(exchange.executor, exchange.layout, holdings.block_size, num_blocks), num_blocks)
    return Shelf(holdings, exchange, tier, _disk_of(holdings, exchange, options), prefill_rate)


def _memory_of(executor: Executor, layout: KvLayout, block_size: int, num_rows: int) -> HostMemory:
    """The executor's own, where it copies blocks beside its steps. Raises FieldError where it has none to give."""
    of_executor = getattr(executor, "host_rows", None)
    try:
        found: HostMemory | None = of_executor(num_rows) if of_executor is not None else None
    except MemoryError as error:
        raise FieldError("host_cache_tokens", f"needs memory that can't be had: {error}") from None
    return found or Slabs(layout, block_size, num_rows, executor.export_blocks, executor.import_blocks)


def _disk_of(holdings: Holdings, exchange: Exchange, options: EngineOptions) -> DiskTier | None:
    """Where the options name a directory. One that can't be used is no reason not to serve."""
    if not options.disk_cache_dir:
        return None
    directory, most = Path(options.disk_cache_dir), options.disk_cache_mib << 20
    try:
        return DiskTier(directory, exchange.layout, holdings.block_size, most)
    except OSError as error:
        log.warning("disk_cache_dir has no effect: no blocks can be kept in %s: %s.", directory, error)
        return None

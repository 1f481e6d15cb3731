"""PrefixLog: the prompts that a worker began of late, as grains, so that each gateway hears of the others'. No gRPC."""

from collections import deque
from itertools import islice

from polyfleet.v1 import worker_pb2 as pb
from polyfleet.wire.hashing import MAX_GRAINS, PLACEMENT_GRAIN

MAX_LOG_GRAINS = 262_144  # of a worker with a larger KV cache, too: 2 MB on the wire, when a gateway comes
MAX_NEWS_CHAINS = 256  # in one event
Chain = tuple[int, ...]


class PrefixLog:
    """The last chains, the oldest forgotten once the newer ones fill the KV cache. Numbered from 0 on, for ever."""

    def __init__(self) -> None:
        self._chains: deque[tuple[Chain, object]] = deque()
        self._num_grains = 0
        self._capacity = MAX_LOG_GRAINS
        self.end = 0  # number of the next one
        self.life = 0  # counts how often the cache became empty

    @property
    def begin(self) -> int:
        """Number of the oldest one still known."""
        return self.end - len(self._chains)

    def clear(self, kv_tokens: int) -> None:
        """The cache is a new one, of so many tokens."""
        self._chains.clear()
        self._num_grains = 0
        self._capacity = min(MAX_LOG_GRAINS, max(1, kv_tokens // PLACEMENT_GRAIN))
        self.life += 1

    def add(self, grains: Chain, teller: object) -> None:
        """A prompt was begun for `teller`."""
        if not grains:
            return
        self._chains.append((grains[:MAX_GRAINS], teller))
        self._num_grains += min(len(grains), MAX_GRAINS)
        self.end += 1
        while self._num_grains > self._capacity and len(self._chains) > 1:
            self._num_grains -= len(self._chains.popleft()[0])

    def since(self, number: int, count: int) -> list[tuple[Chain, object]]:
        """Up to `count` chains from that number on, each with who told of it."""
        start = number - self.begin
        return list(islice(self._chains, start, start + count))


class PrefixTeller:
    """What one session has told of the log. Begins with all of it; leaves out what its own gateway told afterwards."""

    def __init__(self, log: PrefixLog) -> None:
        self._log = log
        self.resync()

    def resync(self) -> None:
        """Tell all again."""
        self._life = -1
        self._position = self._told = self._whole_until = 0

    def news(self) -> pb.PrefixNews | None:
        """What is to be told now; None: nothing."""
        log = self._log
        if whole := self._life != log.life or self._position < log.begin:
            self._life, self._position, self._told, self._whole_until = log.life, log.begin, 0, log.end
        elif self._position == log.end:
            return None
        entries = log.since(self._position, MAX_NEWS_CHAINS)
        first, self._position = self._position, self._position + len(entries)
        told = [c for n, (c, teller) in enumerate(entries, first) if teller is not self or n < self._whole_until]
        if not told and not whole:
            return None
        news = pb.PrefixNews(number=self._told, chains=[pb.PrefixChain(grains=chain) for chain in told], whole=whole)
        self._told += len(told)
        return news

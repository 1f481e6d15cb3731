"""Travel: the engine's part in giving prefixes to other workers, and in fetching theirs, beside its steps.

A sequence whose prompt another worker is said to have waits while it is fetched, if that is likely to be faster than
computing it, and starts with what has come: then it is in the prefix cache. Whatever fails, it computes the rest.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from math import lcm

from polyfleet.engine.exchange import Exchange
from polyfleet.engine.executor import DeviceTimeout
from polyfleet.engine.sequence import Sequence, SequenceState
from polyfleet.kvcache.portable import BLOCK_TOKENS
from polyfleet.kvcache.travelling import (
    FAILURES,
    Chunk,
    PrefixFetch,
    PrefixInquiry,
    PrefixRoom,
    Wanted,
    chunk_tokens,
)
from polyfleet.wire.tickets import PrefixSource

log = logging.getLogger(__name__)
LEAST_TOKENS = 64  # fewer are computed
FETCH_SECONDS = (0.5, 30.0)  # that a fetch may take, whatever computing takes
UNKNOWN_SECONDS = 10.0  # where it is not known what computing takes
UNREACHABLE_SECONDS = 10.0  # after which a peer that could not be reached is tried again
MOST_UNREACHABLE = 1000  # peers that are remembered so
FORGETTING = 0.9  # of a pace that was too slow to fetch: so it is tried again some time


@dataclass(slots=True)
class _Arrival:
    """A sequence that waits for a fetch."""

    sequence: Sequence
    fetch: PrefixFetch
    hashes: list[bytes]
    began: float
    address: str
    tokens: int = 0  # that were taken in


class Travel:
    """Call `advance` before each step. Not thread-safe; the room's threads do what waits."""

    def __init__(
        self,
        exchange: Exchange,
        room: PrefixRoom,
        block_size: int,
        prefill_rate: Callable[[], float],
        clock: Callable[[], float],
    ) -> None:
        """`prefill_rate`: tokens a second that this engine computes; 0: not known."""
        self.fetches = 0  # that brought what was wanted, so far
        self.failures = dict.fromkeys(FAILURES, 0)
        self.fetched_tokens = self.given_tokens = 0
        self._exchange, self._room, self._grain = exchange, room, lcm(block_size, BLOCK_TOKENS)
        self._block_size, self._prefill_rate, self._clock = block_size, prefill_rate, clock
        self._arrivals: list[_Arrival] = []
        self._inquiries: list[tuple[PrefixInquiry, list[bytes]]] = []
        self._unreachable: dict[str, float] = {}  # addresses that led nowhere, and until when they are not tried
        self._seconds_per_token = 0.0  # of fetches so far; 0: not known

    @property
    def has_work(self) -> bool:
        """Whether `advance` would do anything now."""
        return bool(self._arrivals) or self._room.asked or any(each.room or each.gone for each, _ in self._inquiries)

    @property
    def counts(self) -> tuple[int, int, int, tuple[int, ...]]:
        """As the last fields of EngineStatus."""
        return self.fetched_tokens, self.given_tokens, self.fetches, tuple(self.failures.values())

    def begin(self, sequence: Sequence, source: PrefixSource) -> None:
        """Fetch a waiting sequence's beginning, where that is likely to pay."""
        if not sequence.reads_prefix or sequence.images is not None:
            return
        tokens = sequence.tokens(0, min(source.tokens, sequence.num_tokens - 1) // self._grain * self._grain)
        hashes = sequence.chain(len(tokens) // self._block_size, self._block_size)[:]
        first = self._exchange.known_tokens(hashes) // self._grain * self._grain
        count = len(tokens) - first
        if count < LEAST_TOKENS:
            return
        if self._avoided(source):
            return
        rate = self._prefill_rate()
        least, most = FETCH_SECONDS
        seconds = min(max(least, count / rate), most) if rate else UNKNOWN_SECONDS
        request = sequence.request
        layout = self._exchange.layout
        wanted = Wanted(layout, tuple(tokens), request.cache_salt, request.adapter, first, self._grain)
        fetch = self._room.fetch(source, wanted, seconds)
        if fetch is None:
            self.failures["busy"] += 1
            return
        sequence.arriving = True
        self._arrivals.append(_Arrival(sequence, fetch, hashes, self._clock(), source.address))

    def _avoided(self, source: PrefixSource) -> bool:
        """Whether fetching has lately been slower than computing, or led nowhere: then it is counted as that."""
        if self._seconds_per_token * self._prefill_rate() > 1.0:
            self._seconds_per_token *= FORGETTING
            self.failures["slower"] += 1
        elif self._clock() < self._unreachable.get(source.address, 0.0):
            self.failures["unreachable"] += 1
        else:
            return False
        return True

    def advance(self) -> None:
        """Take in what has come, and put out a chunk for each peer that has room for it."""
        self._room.clear()
        for inquiry in self._room.new_inquiries():
            self._meet(inquiry)
        self._inquiries = [pair for pair in self._inquiries if self._give(*pair)]
        self._arrivals = [each for each in self._arrivals if self._take(each)]

    def _meet(self, inquiry: PrefixInquiry) -> None:
        layout = self._exchange.layout
        if inquiry.model != layout.model:
            inquiry.end("this worker has another model, or another revision of it")
            return
        inquiry.state(layout)
        self._inquiries.append((inquiry, self._exchange.chain(inquiry.token_ids, inquiry.salt)))

    def _give(self, inquiry: PrefixInquiry, hashes: list[bytes]) -> bool:
        """The next chunk, if there is room for it; False when that was all."""
        if inquiry.gone:
            return False
        if not inquiry.room:
            return True
        first = inquiry.first
        count = (self._exchange.known_tokens(hashes) - first) // inquiry.grain * inquiry.grain
        count = min(count, chunk_tokens(self._exchange.layout, inquiry.grain))
        if count <= 0:
            inquiry.end()
            return False
        try:
            inquiry.give(first, self._exchange.read(hashes, first, first + count))
        except DeviceTimeout:
            raise
        except Exception:
            log.exception("A prefix that another worker asks for could not be read.")
            inquiry.end("this worker can't read it")
            return False
        self.given_tokens += count
        return True

    def _take(self, arrival: _Arrival) -> bool:
        """What has come of one; False when it is over, and its sequence may start."""
        fetch, sequence = arrival.fetch, arrival.sequence
        wanted = sequence.state is SequenceState.WAITING
        over = fetch.over  # before the last chunk is looked for
        found = fetch.take() if wanted else None
        if found is not None:
            chunk, number = found
            cached = self._add(arrival.hashes, chunk)
            fetch.release(number)
            if cached >= chunk.first + chunk.tokens:
                arrival.tokens += chunk.tokens
                return True
            over = True  # no room, or what stands before it was evicted
        elif wanted and not over:
            return True
        self._end(arrival, wanted)
        return False

    def _add(self, hashes: list[bytes], chunk: Chunk) -> int:
        """Tokens of the chain that are cached now. An executor that can't write is no reason to end all that runs."""
        try:
            return self._exchange.add(hashes, chunk.first, chunk.caches)
        except DeviceTimeout:
            raise
        except Exception:
            log.exception("A prefix that another worker sent could not be taken in.")
            return 0

    def _end(self, arrival: _Arrival, wanted: bool) -> None:
        self._room.done(arrival.fetch)
        arrival.sequence.arriving = False
        self.fetched_tokens += arrival.tokens
        if not wanted:
            return
        if arrival.tokens:
            pace = (self._clock() - arrival.began) / arrival.tokens
            self._seconds_per_token = (self._seconds_per_token + pace) / 2 if self._seconds_per_token else pace
        if (reason := arrival.fetch.reason) in ("unreachable", "stalled"):
            self._unreachable[arrival.address] = self._clock() + UNREACHABLE_SECONDS
            for address in list(self._unreachable)[:-MOST_UNREACHABLE]:
                del self._unreachable[address]
        if reason:
            self.failures[reason] += 1
        elif arrival.tokens:
            self.fetches += 1

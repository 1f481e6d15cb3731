"""Travel: the engine's part in exchanging prefixes with other workers, beside its steps.

A sequence whose prompt another worker is said to have waits while it is fetched, if that is likely to be faster than
computing it, and starts with what has come: then it is in the prefix cache. Whatever fails, it computes the rest. The
same where the other worker is to compute it: then whoever placed the sequence has found that it pays.
"""

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from math import lcm
from statistics import median

from polyfleet.engine.executor import DeviceTimeout
from polyfleet.engine.step.sequence import Sequence, SequenceState
from polyfleet.engine.travel.exchange import Addition, Exchange
from polyfleet.engine.travel.giving import Giving
from polyfleet.engine.travel.pace import Pace, mean
from polyfleet.kvcache.portable import BLOCK_TOKENS
from polyfleet.kvcache.travelling import FAILURES, PrefixFetch, PrefixRoom, Wanted
from polyfleet.wire.tickets import PrefixSource

log = logging.getLogger(__name__)
LEAST_TOKENS = 64  # fewer are computed
FETCH_SECONDS = (0.5, 30.0)  # that a fetch may take, whatever computing takes
UNKNOWN_SECONDS = 10.0  # where it is not known what computing takes
UNREACHABLE_SECONDS = 10.0  # after which a peer that could not be reached is tried again
RATE_SECONDS = 20.0  # how long rates are known: then they are found out again
HELD_UP_SHARE, MOST_HELD_UP = 0.25, 0.05  # of the time since the last step, seconds: for giving, and for taking
MOST_BEGUN = 64  # chunks of a fetch that are being written, whose memory is not free before a step has seen it
LEAST_PACE = 1e-9  # seconds for a token, of whatever clock
MOST_UNREACHABLE = 1000  # peers that are remembered so


@dataclass(slots=True)
class _Tally:
    """How fetches of one kind ended."""

    fetched: int = 0  # that brought what was wanted
    failures: dict[str, int] = field(default_factory=lambda: dict.fromkeys(FAILURES, 0))


@dataclass(slots=True)
class _Arrival:
    """A sequence that waits for a fetch."""

    sequence: Sequence
    fetch: PrefixFetch
    hashes: list[bytes]
    began: float
    source: PrefixSource
    wanted: int  # tokens
    tally: _Tally
    tokens: int = 0  # that were taken in
    broken: bool = False  # no more can be
    additions: deque[tuple[Addition, int, int, float]] = field(default_factory=deque)  # under way: see _begin
    costs: list[float] = field(default_factory=list)  # of this thread, seconds a token that each chunk took


class Travel:
    """Call `advance` before each step. Not thread-safe; the room's threads do what waits."""

    def __init__(
        self,
        exchange: Exchange,
        room: PrefixRoom,
        giving: Giving,
        block_size: int,
        prefill_rate: Callable[[], float],
        clock: Callable[[], float],
    ) -> None:
        """`prefill_rate`: tokens a second that this engine computes; 0: not known."""
        self.fetched_tokens = 0
        self.giving = giving
        self._held, self._apart = _Tally(), _Tally()  # of what peers held, and of what they were to compute
        self._exchange, self._room, self._grain = exchange, room, lcm(block_size, BLOCK_TOKENS)
        self._block_size, self._prefill_rate, self._clock = block_size, prefill_rate, clock
        self._arrivals: list[_Arrival] = []
        self._unreachable: dict[str, float] = {}  # addresses that led nowhere, and until when they are not tried
        self._pace = Pace()  # of fetches so far, all that they waited for included
        self._moving_per_token = self._adding_per_token = 0.0  # while something was on its way; while it was taken in
        self._moved = 0.0  # when something came last
        self._advanced = clock()

    @property
    def has_work(self) -> bool:
        """Whether `advance` would do anything now."""
        return bool(self._arrivals) or self.giving.has_work

    @property
    def arriving_tokens(self) -> int:
        """Of prompts, that are on their way: they need not be computed unless that fails."""
        return sum(each.wanted for each in self._arrivals)

    @property
    def counts(self) -> tuple[int, int, int, tuple[int, ...], int, tuple[int, ...], int, float, float]:
        """As the last fields of EngineStatus."""
        held, apart, giving = self._held, self._apart, self.giving
        fetches = self.fetched_tokens, giving.given_tokens, held.fetched, tuple(held.failures.values())
        prefills = apart.fetched, tuple(apart.failures.values()), giving.computed_prompts
        known = self._moving_per_token and self._clock() - self._moved < RATE_SECONDS
        rates = (1 / self._moving_per_token, 1 / self._adding_per_token) if known else (0.0, 0.0)
        return *fetches, *prefills, *rates

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
        tally = self._apart if source.seconds else self._held
        if self._avoided(source, tally):
            return
        request = sequence.request
        layout = self._exchange.layout
        asked = tuple(tokens), request.cache_salt, request.adapter, first, self._grain
        wanted = Wanted(layout, *asked, self._exchange.host_buffers)
        fetch = self._room.fetch(source, wanted, self._patience(source, count))
        if fetch is None:
            tally.failures["busy"] += 1
            return
        sequence.arriving = True
        self._arrivals.append(_Arrival(sequence, fetch, hashes, self._clock(), source, count, tally))

    def _patience(self, source: PrefixSource, count: int) -> float:
        """Seconds that so many tokens may take to come."""
        (least, most), rate = FETCH_SECONDS, self._prefill_rate()
        expected = source.seconds or (count / rate if rate else UNKNOWN_SECONDS)
        return min(max(least, expected), most)

    def _avoided(self, source: PrefixSource, tally: _Tally) -> bool:
        """Whether fetching has lately been slower than computing, or led nowhere: then it is counted as that."""
        if not source.seconds and self._pace.slower_than(self._prefill_rate()):
            tally.failures["slower"] += 1
        elif self._clock() < self._unreachable.get(source.address, 0.0):
            tally.failures["unreachable"] += 1
        else:
            return False
        return True

    def woken(self) -> None:
        """The room's news are seen; `has_work` says whether they ask for anything."""
        self._room.clear()

    def advance(self) -> None:
        """Put out what peers have room for, and take in what has come: a chunk of each, and more while time is left.

        So a step is held up by a part of what the one before it took: what a long one completed leaves all at once.
        """
        self._room.clear()
        now = self._clock()
        held_up, self._advanced = min(MOST_HELD_UP, HELD_UP_SHARE * (now - self._advanced)), now
        self.giving.advance(now + held_up)
        until = self._clock() + held_up
        self._arrivals = [each for each in self._arrivals if self._take(each, until)]

    def _take(self, arrival: _Arrival, until: float) -> bool:
        """What has come of one, until then; False when it is over, and its sequence may start."""
        wanted = arrival.sequence.state is SequenceState.WAITING
        over = arrival.fetch.over  # before the last chunk is looked for
        if wanted and self._cached(arrival):
            while len(arrival.additions) < MOST_BEGUN and self._begin(arrival) and self._clock() < until:
                pass
            if self._cached(arrival) and (arrival.additions or arrival.fetch.waiting or not over):
                return True
        self._end(arrival, wanted)
        return False

    def _begin(self, arrival: _Arrival) -> bool:
        """Begin to take in the next chunk of one; False: none has come."""
        found = arrival.fetch.take()
        if found is None:
            return False
        chunk, number = found
        began = self._clock()
        try:
            read = partial(arrival.fetch.release, number)
            addition = self._exchange.begin_add(arrival.hashes, chunk.first, chunk.caches, read)
        except DeviceTimeout:
            raise
        except Exception:
            log.exception("A prefix that another worker sent could not be taken in.")
            arrival.broken = True
            return False
        arrival.additions.append((addition, chunk.first, chunk.tokens, self._clock() - began))
        return True

    def _cached(self, arrival: _Arrival) -> bool:
        """Cache what has been taken in; False where there was no room, or what stands before it was evicted.

        An executor that can't write is no reason to end all that runs.
        """
        additions = arrival.additions
        while additions and not arrival.broken and additions[0][0].writing.over:
            addition, first, tokens, cost = additions.popleft()
            began = self._clock()
            try:
                cached = self._exchange.end_add(addition)
            except DeviceTimeout:
                raise
            except Exception:
                log.exception("A prefix that another worker sent could not be taken in.")
                cached = 0
            arrival.costs.append((cost + self._clock() - began) / tokens)
            arrival.broken = cached < first + tokens
            arrival.tokens += 0 if arrival.broken else tokens
        return not arrival.broken

    def _end(self, arrival: _Arrival, wanted: bool) -> None:
        for addition, *_ in arrival.additions:
            self._exchange.drop(addition)
        self._room.done(arrival.fetch)
        arrival.sequence.arriving = False
        self.fetched_tokens += arrival.tokens
        if not wanted:
            return
        tally, source = arrival.tally, arrival.source
        if arrival.tokens:
            self._moved = self._clock()
            self._moving_per_token = mean(
                self._moving_per_token, max(LEAST_PACE, arrival.fetch.seconds / arrival.tokens)
            )
            typical = median(arrival.costs)  # for what a worker does once, the first time, costs no later one
            self._adding_per_token = mean(self._adding_per_token, max(LEAST_PACE, typical))
        if arrival.tokens and not source.seconds:
            self._pace.learn(arrival.tokens, self._clock() - arrival.began)
        if (reason := arrival.fetch.reason) in ("unreachable", "stalled"):
            self._unreachable[source.address] = self._clock() + UNREACHABLE_SECONDS
            for address in list(self._unreachable)[:-MOST_UNREACHABLE]:
                del self._unreachable[address]
        if reason:
            tally.failures[reason] += 1
        elif arrival.tokens:
            tally.fetched += 1

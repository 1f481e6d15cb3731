"""A TransferRoom whose engine is a thread that gives every inquiry the same caches, for tests of the channel."""

import select
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from polyfleet.graph.kernel_graph import PerToken
from polyfleet.kvcache.portable import Array, KvLayout
from polyfleet.kvcache.travelling import Chunk, Leaving, Wanted
from polyfleet.transfer.fetching import Fetch
from polyfleet.transfer.inquiry import Inquiry
from polyfleet.transfer.room import TransferRoom
from polyfleet.transfer.settings import TransferSettings
from polyfleet.wire.hashing import adapter_salt, prefix_root
from polyfleet.wire.tickets import PrefixSource, TransferOffer, source_of

LAYOUT = KvLayout("model", (PerToken(2, 4), PerToken(2, 4)), "float16")
GRAIN = 16
WAIT_SECONDS = 60.0  # guards against a hang alone


def caches_of(first: int, tokens: int) -> tuple[Array, ...]:
    """What stands at these positions: numbers that tell where."""
    places = np.arange(first, first + tokens, dtype=np.float16).reshape(1, tokens, 1, 1)
    return tuple(np.broadcast_to(places + layer, (2, tokens, 2, 4)).astype(np.float16) for layer in (0, 1000))


def leaving(first: int, caches: tuple[Array, ...]) -> Leaving:
    """What is there already."""
    return Leaving(first, caches[0].shape[1], sum(each.nbytes for each in caches), lambda: caches)


class PlayedEngine:
    """Gives `tokens` of whatever is asked for, `step` at a time, once `gate` is set; it hangs at `hangs_at` tokens."""

    def __init__(
        self, room: TransferRoom, tokens: int, step: int = GRAIN, layout: KvLayout = LAYOUT, hangs_at: int = -1
    ) -> None:
        self.inquiries: list[Inquiry] = []
        self.gate, self.stop = threading.Event(), threading.Event()
        self.gate.set()
        self._room, self._tokens, self._step, self._layout = room, tokens, step, layout
        self._hangs_at = hangs_at
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        open_ones: list[Inquiry] = []
        while not self.stop.is_set():
            select.select([self._room.descriptor], [], [], 0.05)
            self._room.clear()
            new = self._room.new_inquiries()
            for each in new:
                each.state(self._layout)
            self.inquiries += new
            open_ones = [each for each in open_ones + new if not each.gone and not each.ended]
            while self.gate.is_set() and open_ones:
                if not sum(self._advance(each) for each in open_ones):
                    break

    def _advance(self, inquiry: Inquiry) -> bool:
        if inquiry.ended or inquiry.gone or not inquiry.room or inquiry.first == self._hangs_at:
            return False
        if inquiry.first >= self._tokens:
            inquiry.end()
            return False
        caches = caches_of(inquiry.first, min(self._step, self._tokens - inquiry.first))
        inquiry.give(leaving(inquiry.first, caches))
        return True


@contextmanager
def played(tokens: int, **given: object) -> Iterator[tuple[TransferRoom, PlayedEngine, TransferOffer]]:
    """A room with such an engine, and its offer."""
    room = TransferRoom(TransferSettings("127.0.0.1:0"))
    engine = PlayedEngine(room, tokens, **given)  # type: ignore[arg-type]
    try:
        yield room, engine, TransferOffer(f"127.0.0.1:{room.port}", room.local, room.key)
    finally:
        engine.stop.set()
        engine.thread.join(WAIT_SECONDS)
        room.close()


def wanted_of(tokens: int, *, first: int = 0, salt: bytes = b"tenant", adapter: str = "") -> Wanted:
    """So many tokens of a prompt."""
    return Wanted(LAYOUT, tuple(range(tokens)), salt, adapter, first, GRAIN)


def ticket(offer: TransferOffer, salt: bytes = b"tenant", *, adapter: str = "") -> PrefixSource:
    """For the model's prefixes of a tenant."""
    root = prefix_root("model", adapter_salt(salt, adapter))
    return source_of(offer, root, 4096)


def collect(room: TransferRoom, fetch: Fetch) -> list[Chunk]:
    """All chunks of a fetch, copied, until it is over."""
    chunks: list[Chunk] = []
    while True:
        over = fetch.over
        if (found := fetch.take()) is not None:
            chunk, number = found
            chunks.append(Chunk(chunk.first, tuple(each.copy() for each in chunk.caches)))
            fetch.release(number)
        elif over:
            room.done(fetch)
            return chunks
        else:
            select.select([room.descriptor], [], [], WAIT_SECONDS)
            room.clear()


def fetched(
    room: TransferRoom, source: PrefixSource, wanted: Wanted, seconds: float = WAIT_SECONDS
) -> tuple[list[Chunk], str]:
    """Fetch, and why not all has come."""
    fetch = room.fetch(source, wanted, seconds)
    assert fetch is not None
    return collect(room, fetch), fetch.reason

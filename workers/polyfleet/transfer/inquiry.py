"""Inquiry: what a peer asks of this worker's engine, and what the engine has put out for it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from queue import Empty, Full, Queue

from polyfleet.kvcache.portable import Array, KvLayout
from polyfleet.kvcache.travelling import Chunk

CHUNKS_AHEAD = 2  # that the engine may put out before the first of them has left


@dataclass(eq=False)
class Inquiry:
    """Which beginning is wanted, in the engine's words: `salt` is the tenant's and the adapter's together.

    With `computes` the engine is to compute what it does not hold, for the tenant's `cache_salt` and that adapter.

    The engine's thread puts chunks out while there is `room`, and ends it; the peer's thread takes them.
    """

    model: str
    token_ids: tuple[int, ...]
    salt: bytes
    first: int  # tokens that the peer has
    grain: int  # tokens of a chunk are multiples of it
    computes: bool = False
    cache_salt: bytes = b""
    adapter: str = ""
    gone: bool = False  # the peer is not served any more
    ended: bool = False
    _out: "Queue[KvLayout | Chunk | str]" = field(default_factory=lambda: Queue(CHUNKS_AHEAD + 2), repr=False)

    @property
    def room(self) -> bool:
        """Whether another chunk may be put out."""
        return self._out.qsize() < CHUNKS_AHEAD

    def state(self, layout: KvLayout) -> None:
        """First of all: how the chunks' numbers are stored."""
        self._put(layout)

    def give(self, first: int, caches: Sequence[Array]) -> None:
        """The next chunk."""
        self._put(Chunk(first, tuple(caches)))
        self.first = first + caches[0].shape[1]

    def end(self, reason: str = "") -> None:
        """Nothing follows; `reason` says why that is not all."""
        self.ended = True
        self._put(reason)

    def take(self, seconds: float) -> KvLayout | Chunk | str | None:
        """What comes next, waited for so long; None: nothing yet."""
        try:
            return self._out.get(timeout=seconds)
        except Empty:
            return None

    def _put(self, item: KvLayout | Chunk | str) -> None:
        try:
            self._out.put_nowait(item)
        except Full:  # the engine looks for room before
            self.gone = True

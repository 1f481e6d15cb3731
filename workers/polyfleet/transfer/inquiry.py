"""Inquiry: what a peer asks of this worker's engine, and what the engine has put out for it."""

from collections.abc import Collection
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue

from polyfleet.kvcache.portable import KvLayout
from polyfleet.kvcache.travelling import Chunk, Leaving

AHEAD_BYTES = 1 << 30  # that the engine may have put out, for all peers, before it leaves: what a long step completes


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
    served: "Collection[Inquiry]" = field(default=(), repr=False)  # at present, this one too: they share AHEAD_BYTES
    _out: "SimpleQueue[KvLayout | Leaving | str]" = field(default_factory=SimpleQueue, repr=False)
    _put: int = 0  # bytes, by the engine
    _left: int = 0  # bytes, to the peer

    @property
    def room(self) -> bool:
        """Whether another chunk may be put out."""
        return self._put - self._left < AHEAD_BYTES // max(1, len(self.served))

    def state(self, layout: KvLayout) -> None:
        """First of all: how the chunks' numbers are stored."""
        self._out.put(layout)

    def give(self, chunk: Leaving) -> None:
        """The next chunk."""
        self._put += chunk.bytes
        self._out.put(chunk)
        self.first = chunk.first + chunk.tokens

    def end(self, reason: str = "") -> None:
        """Nothing follows; `reason` says why that is not all."""
        self.ended = True
        self._out.put(reason)

    def take(self, seconds: float) -> KvLayout | Chunk | str | None:
        """What comes next, waited for so long, and for the device; None: nothing yet."""
        try:
            item = self._out.get(timeout=seconds)
        except Empty:
            return None
        if isinstance(item, Leaving):
            self._left += item.bytes
            return Chunk(item.first, item.arrived())
        return item

"""Keys and values on their way between workers, in chunks: what engine and channel tell each other. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from polyfleet.wire.tickets import PrefixSource

if TYPE_CHECKING:
    from polyfleet.kvcache.portable import Array, KvLayout  # they bring numpy, which who only waits needs not load

CHUNK_BYTES = 8 << 20  # about: so that what a chunk costs beside moving it is little
WAY_BYTES, MOST_ON_WAY = 64 << 20, 16  # of one transfer, and chunks, that may lie between two engines


class Chunk(NamedTuple):
    """Keys and values of a prefix's positions from `first` on: of each cache [2, tokens, kv heads, width]."""

    first: int
    caches: tuple[Array, ...]

    @property
    def tokens(self) -> int:
        """Positions."""
        return self.caches[0].shape[1] if self.caches else 0

    @property
    def bytes(self) -> int:
        """Of all caches."""
        return sum(each.nbytes for each in self.caches)


class Leaving(NamedTuple):
    """A chunk on its way from a device."""

    first: int
    tokens: int
    bytes: int
    arrived: Callable[[], tuple[Array, ...]]  # waits for it, on any thread


class Wanted(NamedTuple):
    """The beginning of a prompt that is to be fetched: the tokens from `first` on, in multiples of `grain`."""

    layout: KvLayout  # of the engine that wants it
    token_ids: tuple[int, ...]
    salt: bytes
    adapter: str
    first: int
    grain: int
    host_buffers: Callable[[int], memoryview] | None = (
        None  # makes memory in which chunks are to lie; None: any will do
    )


def chunk_tokens(layout: KvLayout, grain: int) -> int:
    """Tokens of a chunk at most: of about CHUNK_BYTES, a multiple of the grain."""
    return max(1, CHUNK_BYTES // (max(1, layout.token_bytes) * grain)) * grain


def chunks_on_way(layout: KvLayout, grain: int) -> int:
    """Chunks of one transfer that may have left the giving engine before the other one has read the first of them."""
    size = chunk_tokens(layout, grain) * layout.token_bytes
    return max(2, min(MOST_ON_WAY, WAY_BYTES // max(1, size)))


class PrefixFetch(Protocol):
    """A beginning that is being fetched: `take` chunks until `over`."""

    over: bool  # no more chunks come than can be taken now
    reason: str  # why not all has come: one of FAILURES, or empty
    bytes: int  # that have come
    seconds: float  # while chunks were on their way: each from its frame's begin until it was read

    @property
    def waiting(self) -> int:
        """Chunks that can be taken now."""
        ...

    def take(self) -> tuple[Chunk, int] | None:
        """The next chunk and the number to `release` when it has been read; None: nothing yet."""
        ...

    def release(self, number: int) -> None:
        """A chunk has been read: what it lies in is written again."""
        ...


class PrefixInquiry(Protocol):
    """A beginning that a peer asks for, in the engine's words: `salt` is the tenant's and the adapter's together.

    With `computes` the engine is to compute what it does not hold, for the tenant's `cache_salt` and that adapter.
    """

    model: str
    token_ids: tuple[int, ...]
    salt: bytes
    first: int  # tokens that the peer has, those that were given included
    grain: int  # tokens of a chunk are multiples of it
    computes: bool
    cache_salt: bytes
    adapter: str
    gone: bool  # the peer is not served any more

    @property
    def room(self) -> bool:
        """Whether another chunk may be put out."""
        ...

    def state(self, layout: KvLayout) -> None:
        """First of all: how the chunks' numbers are stored."""
        ...

    def give(self, chunk: Leaving) -> None:
        """The next chunk."""
        ...

    def end(self, reason: str = "") -> None:
        """Nothing follows; `reason` says why that is not all."""
        ...


class PrefixRoom(Protocol):
    """Where peers ask, and whence prefixes come. What it does it does on threads of its own."""

    def fetch(self, source: PrefixSource, wanted: Wanted, seconds: float) -> PrefixFetch | None:
        """Begin to fetch; None while too much is under way."""
        ...

    def done(self, fetch: PrefixFetch) -> None:
        """A fetch is over, or not wanted any more."""
        ...

    def new_inquiries(self) -> Sequence[PrefixInquiry]:
        """That have come since the last time."""
        ...

    @property
    def asked(self) -> bool:
        """Whether there are new inquiries."""
        ...

    def clear(self) -> None:
        """The news have been seen that its descriptor tells of."""
        ...


FAILURES = ("unreachable", "refused", "stalled", "damaged", "lost", "busy", "slower")
"""Why a beginning was computed that a peer was said to have."""
DISK_PROBLEMS = ("unwritable", "unreadable", "refused", "slow")
"""Why local disk keeps, or gives, nothing: errors of writing, or reading; a file that is damaged, or another's; a read
that took too long."""

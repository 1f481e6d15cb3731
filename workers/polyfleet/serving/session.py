"""One gateway's session: the sequences it has open, and their news until the gateway has taken it. No gRPC here.

The engine never waits for a gateway. News of a sequence that the gateway has not taken yet grows into the delta that
waits already, so what a slow reader leaves behind is bounded by its own sequences' tokens: nothing is lost, nothing
changes order within a sequence.
"""

import asyncio
from collections import deque
from collections.abc import Callable

from polyfleet.serving.prefix_log import PrefixLog, PrefixTeller
from polyfleet.v1 import worker_pb2 as pb
from polyfleet.wire.tickets import TransferOffer

MAX_DELTA_TOKENS = 2048  # with 20 logprobs beside each token about 400 KB
EVENT_BYTES = 1 << 20  # one event stays far below gRPC's message limit
MAX_UNREAD_DELTAS = 8192  # more: the session's next start waits until the gateway reads
NEWS_SECONDS = 0.1  # at most, until a gateway with nothing to hear is told what another one began


class GatewaySession:
    """Deltas of one session on their way out, and which of its sequences are open."""

    def __init__(self, prefixes: PrefixLog | None = None) -> None:
        self.prefixes = PrefixTeller(prefixes or PrefixLog())
        self.open: dict[str, str] = {}  # sequence id → the engine's name of it
        self.closed = False
        self.offer = TransferOffer("")  # of prefixes, that the gateway was told of
        self.num_starts = 0
        self.num_commands = 1  # that came, Hello among them
        self._uncounted: deque[tuple[int, Callable[[], bool]]] = deque()  # starts before each, whether it counts now
        self._deltas: deque[pb.SequenceDelta] = deque()
        self._last: dict[str, pb.SequenceDelta] = {}  # the waiting delta that a sequence's news joins
        self._waiter: asyncio.Future[None] | None = None
        self._soon: asyncio.TimerHandle | None = None
        self._room = asyncio.Event()
        self._room.set()

    @property
    def quiet(self) -> bool:
        """Whether nothing runs and everything has been taken."""
        return not self.open and not self._deltas

    def queued(self, counted: Callable[[], bool]) -> None:
        """The last start has gone to the engine; `counted` tells whether the engine's status counts it."""
        self._uncounted.append((self.num_starts - 1, counted))

    @property
    def reported_starts(self) -> int:
        """How many starts the engine's status counts, from the first on; refused ones need not be waited for."""
        while self._uncounted and self._uncounted[0][1]():
            self._uncounted.popleft()
        return self._uncounted[0][0] if self._uncounted else self.num_starts

    def push(self, delta: pb.SequenceDelta) -> None:
        """Add news; an ending (finish reason or error) closes the sequence."""
        sequence_id = delta.sequence_id
        last = self._last.get(sequence_id)
        if last is not None and _num_tokens(last) + _num_tokens(delta) <= MAX_DELTA_TOKENS:
            last.MergeFrom(delta)
        else:
            self._deltas.append(delta)
            self._last[sequence_id] = delta
        if delta.finish_reason or delta.HasField("error"):
            self.open.pop(sequence_id, None)
            del self._last[sequence_id]  # the id may be used again
        if len(self._deltas) >= MAX_UNREAD_DELTAS:
            self._room.clear()
        self._wake()

    def fail(self, sequence_id: str, code: int, message: str, *, broken: bool = False) -> None:
        """End a sequence with a google.rpc code; `broken`: it ran, and the worker failed."""
        error = pb.SequenceError(code=code, message=message, broken=broken)
        self.push(pb.SequenceDelta(sequence_id=sequence_id, error=error))

    def forget(self, sequence_id: str) -> None:
        """The gateway cancelled: close the sequence and drop what waits of it."""
        self.open.pop(sequence_id, None)
        self._last.pop(sequence_id, None)
        if any(delta.sequence_id == sequence_id for delta in self._deltas):
            self._deltas = deque(delta for delta in self._deltas if delta.sequence_id != sequence_id)

    def close(self) -> None:
        """No more will be taken: `take` returns at once from now on."""
        self.closed = True
        self._wake()
        self._room.set()

    def hear_soon(self) -> None:
        """Another gateway began something here: `take` returns within NEWS_SECONDS, be it with nothing."""
        if self._soon is None:
            self._soon = asyncio.get_running_loop().call_later(NEWS_SECONDS, self._wake)

    async def take(self, timeout: float) -> list[pb.SequenceDelta]:
        """The oldest deltas, at most about EVENT_BYTES of them; waits for one up to `timeout` seconds."""
        if not self._deltas and not self.closed:
            await self._wait(timeout if self._soon is None else NEWS_SECONDS)
        if self._soon is not None:
            self._soon.cancel()
            self._soon = None
        taken: list[pb.SequenceDelta] = []
        size = 0
        while self._deltas and size < EVENT_BYTES:
            delta = self._deltas.popleft()
            if self._last.get(delta.sequence_id) is delta:
                del self._last[delta.sequence_id]
            size += delta.ByteSize()
            taken.append(delta)
        if len(self._deltas) < MAX_UNREAD_DELTAS:
            self._room.set()
        return taken

    async def _wait(self, timeout: float) -> None:
        """Until woken or the timeout; without a task of its own, for this runs once per engine step."""
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        timer = loop.call_later(timeout, self._wake)
        try:
            await self._waiter
        finally:
            timer.cancel()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def room(self) -> None:
        """Wait until the gateway has read enough for another sequence to start."""
        await self._room.wait()


def _num_tokens(delta: pb.SequenceDelta) -> int:
    return len(delta.token_ids) + len(delta.prompt_logprobs)

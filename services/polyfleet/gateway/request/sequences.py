"""All sequences of one request: started together, read together, ended together."""

import asyncio
from collections.abc import Awaitable, Sequence
from types import TracebackType

from polyfleet.gateway.config import Limits
from polyfleet.gateway.metrics import Metrics
from polyfleet.gateway.pace import in_pieces
from polyfleet.gateway.request.accounts import Record
from polyfleet.gateway.request.inbox import Inbox, Parcel
from polyfleet.gateway.request.queue import RequestQueue
from polyfleet.gateway.request.relay import SequenceRelay
from polyfleet.gateway.request.turn import Turn
from polyfleet.wire.requests import SequenceRequest


class Sequences:
    """`async with` starts them; leaving it, or the deadline, cancels what still runs and gives the turn back.

    `running` holds the inboxes of all requests of the gateway. Entering raises ResourceExhausted when the queue is
    full; `take` raises what ends the request, its deadline included.
    """

    def __init__(
        self,
        requests: Sequence[SequenceRequest],
        turn: Turn,
        queue: RequestQueue,
        limits: Limits,
        metrics: Metrics,
        running: set[Inbox],
        record: Record,
    ) -> None:
        self._queue = queue
        self._running = running
        self._record = record
        self._inbox = Inbox()
        self._turn = turn
        self._relays = [
            SequenceRelay(request, turn, self._inbox, queue, limits, metrics, record.times(request.choice))
            for request in requests
        ]
        self._timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> "Sequences":
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._record.seconds_left, self._expire)
        self._running.add(self._inbox)
        try:
            await in_pieces(SequenceRelay.start, self._relays)
        except BaseException:
            self._end()
            raise
        return self

    def take(self) -> Awaitable[list[Parcel]]:
        """The next news of all choices. Those parked for a slow client go on: it has come for more."""
        if self._inbox.parked:
            self._inbox.parked = False
            for relay in self._relays:
                relay.unpark()
        return self._inbox.take()

    def cancel(self, choice: int) -> None:
        """The rest of this choice is not wanted."""
        self._relays[choice].cancel()

    def _expire(self) -> None:
        """The time is up: whoever waits for a turn or a worker gets them now, whether or not the client reads."""
        self._inbox.fail(self._record.deadline_error())
        self._end()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def _end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._running.discard(self._inbox)
        for relay in self._relays:
            relay.cancel()
        self._queue.give_back(self._turn)

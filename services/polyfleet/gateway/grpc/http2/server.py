"""Methods, interceptors, a port and its connections' lives. Servicers are added as to a grpc.aio.Server."""

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import grpc

from polyfleet.gateway.begins import Begins
from polyfleet.gateway.grpc.http2.call import INTERNAL, OK, RESOURCE_EXHAUSTED, UNIMPLEMENTED, Call
from polyfleet.gateway.grpc.http2.connection import Connection
from polyfleet.gateway.grpc.http2.heads import Head, Metadata
from polyfleet.gateway.pace import Pace
from polyfleet.gateway.ports.acceptor import Acceptor
from polyfleet.gateway.ports.doors import Doors
from polyfleet.gateway.ports.taking import Source
from polyfleet.process.tasks import end
from polyfleet.process.within import Within

LOOK_SECONDS = 0.5
GRACE_SECONDS = 1.0  # for a connection without calls to go away by itself, once it was told to
UNKNOWN, UNAVAILABLE = 2, 14
log = logging.getLogger(__name__)


class CallDetails(NamedTuple):
    """What interceptors are asked by."""

    method: str
    invocation_metadata: Metadata


class Bounds(NamedTuple):
    """What no client can pass. Times in seconds."""

    max_streams: int  # of a connection, at once
    max_message_bytes: int
    max_header_bytes: int
    handshake: float  # from TCP's to HTTP/2's first settings
    idle: float  # of a connection without a call
    age: float  # then clients are asked to connect anew,
    age_grace: float  # and their calls go on for so long
    ping_after: float = 30.0  # of silence
    ping_answer: float = 20.0


class Http2Server:
    """Serves handlers whose requests are streams, as DecodeInterceptor makes them, to those whom `doors` let in."""

    def __init__(
        self,
        source: Source,
        doors: Doors,
        bounds: Bounds,
        interceptors: Sequence[Any],
        tls: ssl.SSLContext | None = None,
        begins: Begins | None = None,
    ) -> None:
        self.max_streams, self.max_header_bytes = bounds.max_streams, bounds.max_header_bytes
        self.pace = Pace()
        self._source, self._doors, self._bounds, self._tls = source, doors, bounds, tls
        self._interceptors = interceptors
        self._generic: list[Any] = []
        self._methods: dict[str, Any] = {}
        self._connections: dict[str, Connection] = {}  # by peer
        self._acceptor: Acceptor | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._begins = begins or Begins()
        self._empty = asyncio.Event()
        self._parting: set[Connection] = set()  # may still bring calls while the server stops
        self._parted = asyncio.Event()
        self._stopping = False

    def add_generic_rpc_handlers(self, handlers: Sequence[Any]) -> None:
        """See grpc.aio.Server, here and below."""
        self._generic += handlers

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, Any]) -> None:
        """Found by their names."""
        self._methods |= {f"/{service}/{name}": handler for name, handler in handlers.items()}

    async def start(self) -> None:
        """Take connections."""
        seconds = self._bounds.handshake
        make = partial(Connection, self)
        self._acceptor = Acceptor(self._source, self._doors, lambda visit: make(visit), self._tls, seconds)

    def __len__(self) -> int:
        """Connections."""
        return len(self._doors)

    def heard(self, peer: str) -> None:
        """A call from there was let in: its connection keeps its place."""
        if (connection := self._connections.get(peer)) is not None:
            self._doors.busy(connection.visit)
            connection.trust()

    # Connections' side.

    def opened(self, connection: Connection) -> None:
        """See CallServer, here and below."""
        self._connections[connection.peer] = connection
        if self._stopping:
            connection.leave()

    def closed(self, connection: Connection) -> None:
        """It is gone."""
        if self._connections.get(connection.peer) is connection:
            del self._connections[connection.peer]
        self._doors.leave(connection.visit)
        self.parted(connection)
        if not self._connections:
            self._empty.set()

    def parted(self, connection: Connection) -> None:
        """It gets no more calls."""
        self._parting.discard(connection)
        if not self._parting:
            self._parted.set()

    def called(self, connection: Connection, stream: int, head: Head) -> Call:
        """Have its handler run, in its turn."""
        call = Call(connection, stream, head, self._bounds.max_message_bytes)
        self._begins.add(partial(self._begin, call))
        return call

    def _begin(self, call: Call) -> None:
        if not call.ended:
            call.task = task = asyncio.get_running_loop().create_task(self._answer(call))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _answer(self, call: Call) -> None:
        try:
            if call.head.size > self.max_header_bytes:
                call.finish(RESOURCE_EXHAUSTED, f"Metadata of over {self.max_header_bytes} bytes.")
                return
            if call.head.fault:
                call.finish(INTERNAL, call.head.fault)
                return
            handler = await self._handler(0, CallDetails(call.head.path, call.head.metadata))
            if handler is None:
                call.finish(UNIMPLEMENTED, "There is no such method.")
                return
            await _run(handler, call)
            call.finish(OK)
        except grpc.aio.AbortError:
            pass
        except asyncio.CancelledError:
            call.finish(UNAVAILABLE, "The server is shutting down.")
        except Exception as error:
            if not call.ended:  # else it is the client who has left
                log.exception("A call failed.", extra={"method": call.head.path})
                call.finish(UNKNOWN, f"Unexpected {type(error).__name__}.")

    def _handler(self, index: int, details: CallDetails) -> Awaitable[Any]:
        """As the interceptors from this one on have it."""
        if index == len(self._interceptors):
            return self._found(details)
        found: Awaitable[Any] = self._interceptors[index].intercept_service(partial(self._handler, index + 1), details)
        return found

    async def _found(self, details: CallDetails) -> Any:
        if (known := self._methods.get(details.method)) is not None:
            return known
        return next((found for each in self._generic if (found := each.service(details))), None)

    # Their lives.

    async def watch(self) -> None:
        """End connections whose time is over, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            now = asyncio.get_running_loop().time()
            for connection in list(self._connections.values()):
                self._look(connection, now)

    def _look(self, connection: Connection, now: float) -> None:
        bounds, leaving = self._bounds, connection.leaving
        idle = not connection.calls and now - connection.idle_since > bounds.idle
        if not connection.greeted and now - connection.opened > bounds.handshake:
            self._doors.refuse("handshake")
            connection.cut()
        elif connection.pinged is not None and now - connection.pinged > bounds.ping_answer:
            connection.cut()
        elif leaving is not None:
            if now - leaving > GRACE_SECONDS:
                connection.part()
            if not connection.calls and now - leaving > GRACE_SECONDS:
                connection.close()
            elif now - leaving > bounds.age_grace:
                connection.cut()
        elif idle or now - connection.opened > bounds.age * connection.spread:
            connection.leave()
        elif now - connection.heard > bounds.ping_after and connection.pinged is None:
            connection.ping()

    async def stop(self, grace: float) -> None:
        """Take no more connections and calls; those that run, or are on their way, get so many seconds."""
        self._stopping = True
        if self._acceptor is not None:
            self._acceptor.leave()
        self._source.close()
        until = asyncio.get_running_loop().time() + grace
        await self._part(min(grace, GRACE_SECONDS))
        self._begins.rush()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=max(0.0, until - asyncio.get_running_loop().time()))
        await end(*self._tasks)
        await self._close()

    async def _part(self, seconds: float) -> None:
        """Have all clients go; their calls are taken until they have heard, or the time is over."""
        connections = [each for each in self._connections.values() if not each.left]
        self._parted.clear()
        self._parting.update(connections)
        for connection in connections:
            connection.leave()
        if self._parting and seconds > 0:
            with suppress(asyncio.TimeoutError), Within(seconds):
                await self._parted.wait()
        for connection in connections:
            connection.part()

    async def _close(self) -> None:
        """End all connections, those at once that don't read."""
        if self._acceptor is not None:
            self._acceptor.close()
            await self._acceptor.wait_closed()
        self._empty.clear()
        for connection in list(self._connections.values()):
            connection.close()
        if self._connections:
            with suppress(asyncio.TimeoutError), Within(GRACE_SECONDS):
                await self._empty.wait()
        for connection in list(self._connections.values()):
            connection.cut()


async def _run(handler: Any, call: Call) -> None:
    """The method over the call's messages, its answers written."""
    call.serialize, messages = handler.response_serializer, call.messages(handler.request_deserializer)
    if not handler.response_streaming:
        await call.write(await handler.stream_unary(messages, call))
        return
    answers = handler.stream_stream(messages, call)
    if not hasattr(answers, "__aiter__"):
        await answers
        return
    try:
        async for answer in answers:
            await call.write(answer)
    finally:
        await answers.aclose()

"""One call: its handler's context on one side, its stream of HTTP/2 on the other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any, Protocol

import grpc

from polyfleet.gateway.grpc.http2.frames import (
    MAX_FRAME_BYTES,
    ConnectionProblem,
    Problem,
    reset,
    widened,
    window_update,
)
from polyfleet.gateway.grpc.http2.heads import ANSWER, ENCODINGS, IDENTITY, Head, Metadata, expanded, trailers

PREFIX_BYTES = 5  # before each message: whether it is compressed, and its length
WINDOW = 256 * 1024  # bytes of a call that may come before its handler takes some
LATE_SECONDS = 0.5  # behind the deadline, for a handler that keeps it itself
OK, DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED, UNIMPLEMENTED, INTERNAL = 0, 4, 8, 12, 13
NOT_EXPANDED = {IDENTITY: INTERNAL} | dict.fromkeys(ENCODINGS, RESOURCE_EXHAUSTED)


class Carrier(Protocol):
    """The connection that a call is one of."""

    peer: str
    initial_window: int  # of a call: bytes that may be sent
    waiting: dict[Call, None]  # for room to send, in turn

    @property
    def room(self) -> int:
        """Bytes of messages that may be sent now."""
        ...

    def send(self, data: bytes) -> None:
        """Frames."""
        ...

    def send_data(self, stream: int, data: bytes) -> None:
        """Of a call's messages, MAX_FRAME_BYTES at most, for which there is room."""
        ...

    def send_headers(self, stream: int, headers: tuple[tuple[bytes, bytes], ...], *, end: bool) -> None:
        """Before or behind them."""
        ...

    def took(self, size: int) -> None:
        """So many bytes of messages are held no more."""
        ...

    def forget(self, call: Call) -> None:
        """It has ended."""
        ...


class Call:
    """What handlers call is as grpc.aio.ServicerContext has it. Lives in one event loop."""

    def __init__(self, connection: Carrier, stream: int, head: Head, max_bytes: int) -> None:
        """`max_bytes`: of a message that comes."""
        self.head, self.stream = head, stream
        self.ended = self.half_closed = False  # for the handler, and by the client
        self.window = connection.initial_window  # bytes that may be sent
        self.task: asyncio.Task[None] | None = None
        self.serialize: Callable[[Any], bytes] | None = None
        self._connection = connection
        self._max_bytes = max_bytes
        self._parts = bytearray()  # of messages that have come: taken apart one by one, as its handler takes them
        self._came = 0  # bytes of all of them
        self._allowed, self._owed = WINDOW, 0  # bytes that the client may send, and that it may once they are taken
        self._waiters: list[asyncio.Future[None]] = []  # its handler may read in one task and write in another
        self._begun = self._torn = False  # headers were sent; a message in part
        self._trailing: Metadata = ()
        self._deadline = self._timer = None
        if head.timeout is not None:
            loop = asyncio.get_running_loop()
            self._deadline = loop.time() + head.timeout
            self._timer = loop.call_at(self._deadline + LATE_SECONDS, self._expire)

    # For its handler.

    def invocation_metadata(self) -> Metadata:
        """What the client sent beside its messages."""
        return self.head.metadata

    def peer(self) -> str:
        """The client's address, as gRPC writes it."""
        return self._connection.peer

    def time_remaining(self) -> float | None:
        """Seconds until the client's deadline; None: it has none."""
        if self._deadline is None:
            return None
        return max(0.0, self._deadline - asyncio.get_running_loop().time())

    def set_trailing_metadata(self, metadata: Metadata) -> None:
        """Beside the status."""
        self._trailing = tuple(metadata)

    async def abort(self, code: grpc.StatusCode, details: str = "", trailing_metadata: Metadata = ()) -> None:
        """End the call with this status, and its handler with AbortError."""
        if self.ended:
            raise grpc.aio.UsageError("The call has ended.")
        self._trailing = tuple(trailing_metadata) or self._trailing
        self.finish(code.value[0], details)
        raise grpc.aio.AbortError("Locally aborted.")

    async def messages(self, decode: Callable[[bytes], Any] | None) -> AsyncGenerator[Any, None]:
        """What the client sends, to its end."""
        while True:
            while not (size := self._whole()):
                if self.half_closed or self.ended:
                    return
                await self._wait()
            compressed, message = self._parts[0], bytes(self._parts[PREFIX_BYTES:size])
            del self._parts[:size]
            self._connection.took(size)
            if self._broken():
                return
            self._allow()
            if compressed:
                try:
                    message = expanded(message, self.head.encoding, self._max_bytes)
                except ValueError as error:
                    self._refuse(NOT_EXPANDED.get(self.head.encoding, UNIMPLEMENTED), str(error))
                    return
            yield message if decode is None else decode(message)

    async def write(self, message: Any) -> None:
        """Send a message, once the client and the network take it. Raises InternalError when the call has ended."""
        data = message if self.serialize is None else self.serialize(message)
        data = b"\x00" + len(data).to_bytes(4, "big") + data
        size, connection = len(data), self._connection
        if self.ended:
            raise grpc.aio.InternalError("The call has ended.")
        self._begin()
        if size <= MAX_FRAME_BYTES and size <= self.window and size <= connection.room:
            self.window -= size  # nearly all go this way
            connection.send_data(self.stream, data)
        else:
            await self._write_in_parts(data)

    async def _write_in_parts(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            size = min(len(rest), MAX_FRAME_BYTES, self.window, self._connection.room)
            if size > 0:
                self.window -= size
                self._connection.send_data(self.stream, bytes(rest[:size]))
                rest, self._torn = rest[size:], size < len(rest)
                continue
            self._connection.waiting[self] = None
            try:
                await self._wait()
            finally:
                self._connection.waiting.pop(self, None)
            if self.ended:
                raise grpc.aio.InternalError("The call has ended.")

    def _begin(self) -> None:
        if not self._begun:
            self._begun = True
            self._connection.send_headers(self.stream, ANSWER, end=False)

    def finish(self, code: int, details: str = "") -> None:
        """Tell the status; nothing happens where the call has ended."""
        if self.ended:
            return
        if self._torn:  # no status may stand behind half a message
            self._connection.send(reset(self.stream, Problem.CANCEL))
        else:
            status = trailers(code, details, self._trailing)
            self._connection.send_headers(self.stream, status if self._begun else (*ANSWER, *status), end=True)
            if not self.half_closed:
                self._connection.send(reset(self.stream, Problem.NO_ERROR))
        self._end()

    async def _wait(self) -> None:
        """For anything that comes of it."""
        self._waiters.append(waiter := asyncio.get_running_loop().create_future())
        try:
            await waiter
        finally:
            self._waiters.remove(waiter)

    # For its connection.

    @property
    def answered(self) -> bool:
        """Whether anything was sent."""
        return self._begun or self.ended

    def came(self, data: bytes, size: int, *, end: bool) -> None:
        """Bytes of messages; `size` of them count, padding too. Raises ConnectionProblem."""
        self._allowed -= size
        self._owed += size
        if self._allowed < 0:
            raise ConnectionProblem(Problem.FLOW_CONTROL_ERROR, "more came than was allowed")
        if size > len(data):
            self._connection.took(size - len(data))
        self._parts += data
        self._came += len(data)
        if self.half_closed or not self.head.fits(self._came, end=end):
            code = Problem.STREAM_CLOSED if self.half_closed else Problem.PROTOCOL_ERROR
            self._connection.send(reset(self.stream, code))
            self.lost()
            return
        self.half_closed = end
        if self._broken():
            return
        if not self._whole():
            self._allow()
        if self._whole() or end:
            self.wake()

    def _whole(self) -> int:
        """Bytes of the first message with its prefix; 0 where not all of it has come."""
        if len(self._parts) < PREFIX_BYTES:
            return 0
        size = PREFIX_BYTES + int.from_bytes(self._parts[1:PREFIX_BYTES], "big")
        return size if size <= len(self._parts) else 0

    def _broken(self) -> bool:
        """Whether the first message is too large, or torn by the end; then the call has ended over it."""
        parts = self._parts
        if len(parts) >= PREFIX_BYTES and (size := int.from_bytes(parts[1:PREFIX_BYTES], "big")) > self._max_bytes:
            self._refuse(RESOURCE_EXHAUSTED, f"Received message larger than max ({size} vs. {self._max_bytes})")
            return True
        if parts and self.half_closed and not self._whole():
            self._refuse(INTERNAL, "The request ended within a message.")
            return True
        return False

    def _refuse(self, code: int, details: str) -> None:
        self.finish(code, details)
        self._stop()

    def _allow(self) -> None:
        """Let the client send as much as was taken, unless that is little."""
        if self._owed >= WINDOW // 2 and not (self._whole() or self.half_closed or self.ended):
            self._connection.send(window_update(self.stream, self._owed))
            self._allowed, self._owed = self._allowed + self._owed, 0

    def widen(self, size: int) -> None:
        """The client takes so many bytes more. Raises ConnectionProblem."""
        self.window = widened(self.window, size)
        self.wake()

    def wake(self) -> None:
        """Whatever its handler waits for may have come."""
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    def lost(self) -> None:
        """The client has left: its handler is cancelled."""
        if not self.ended:
            self._end()
            self._stop()

    def _expire(self) -> None:
        self.finish(DEADLINE_EXCEEDED, "Deadline Exceeded")
        self._stop()

    def _stop(self) -> None:
        if self.task is not None:
            self.task.cancel()

    def _end(self) -> None:
        self.ended = True
        if self._parts:
            self._connection.took(len(self._parts))
            self._parts.clear()
        if self._timer is not None:
            self._timer.cancel()
        self._connection.forget(self)
        self.wake()

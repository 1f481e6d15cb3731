"""One connection of HTTP/2: frames in and out, windows, and what bounds a peer who keeps to no measure."""

import asyncio
import random
import ssl
import time
from itertools import islice
from urllib.parse import quote

from polyfleet.gateway.grpc.http2 import frames
from polyfleet.gateway.grpc.http2.call import WINDOW, Call, CallServer
from polyfleet.gateway.grpc.http2.frames import ConnectionProblem, Problem, StreamProblem
from polyfleet.gateway.grpc.http2.heads import read_head
from polyfleet.gateway.grpc.http2.hpack import Header
from polyfleet.gateway.grpc.http2.patience import RESET_WEIGHT, Patience
from polyfleet.gateway.grpc.http2.reading import FrameReader
from polyfleet.gateway.ports.doors import Visit

CONNECTION_WINDOW = 1024 * 1024
QUICK_SECONDS = 0.0005  # what takes longer to read, of somebody who has shown no key, is paced
CALL_SECONDS, STRANGERS_CALLS = 0.001, 4  # what refusing a call takes, and so many are begun at once
STRANGERS_FRAMES = 256  # that ask for nothing, read at once
MAX_PENDING_BYTES = 256 * 1024  # of messages, for one turn of the event loop
ROOM_EACH = 256  # bytes, of calls that wait for some
CALLS_WIDENED = 16  # in the time that an idle frame takes
MAX_UNREAD_BYTES = 2 * 1024 * 1024  # that only answers to frames which ask for nothing can come to


class Connection(asyncio.Protocol):
    """Lives in one event loop. Times are the loop's seconds."""

    def __init__(self, server: "CallServer[Connection]", visit: Visit) -> None:
        self._server, self.visit = server, visit
        self.calls: dict[int, Call] = {}
        self.waiting: dict[Call, None] = {}  # for room to send
        self.initial_window = frames.DEFAULT_WINDOW  # of a call: bytes that may be sent,
        self._window = frames.DEFAULT_WINDOW  # and of all together
        self._full = False  # the peer does not read
        self.peer = ""
        self._trusted = False
        self._resting: asyncio.TimerHandle | None = None  # until it is read on
        self.leaving: float | None = None  # since when it gets no more calls
        self._loop = asyncio.get_running_loop()
        self.opened = self.heard = self.idle_since = self._loop.time()
        self.pinged: float | None = None  # since when it was asked for a sign of life
        self.spread = random.uniform(0.9, 1.1)  # so that not all grow old together
        self._reader = FrameReader(self)
        self._last_stream = 0
        self._allowed, self._owed = CONNECTION_WINDOW, 0
        self._patience, self._num_called, self._num_idle = Patience(self.opened), 0, 0
        self._out: list[bytes] = []
        self._pending = 0  # bytes of it
        self._flushing = self._closed = False

    # asyncio.Protocol.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Greet."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        host, port = (transport.get_extra_info("peername") or ("", 0))[:2]
        self.peer = f"ipv6:{quote(f'[{host}]')}:{port}" if ":" in host else f"ipv4:{host}:{port}"
        self.visit.close = self.cut
        tls: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
        if tls is not None and tls.selected_alpn_protocol() != "h2":
            self.cut()
            return
        streams, header_bytes = self._server.max_streams, self._server.max_header_bytes
        self.send(frames.greeting(streams, header_bytes, WINDOW, CONNECTION_WINDOW))
        self._server.opened(self)

    def data_received(self, data: bytes) -> None:
        """Frames, or parts of them."""
        if data:
            self.heard, self.pinged = self._loop.time(), None
        self._num_called = self._num_idle = 0
        began = time.thread_time()
        try:
            self._reader.feed(data)
        except ConnectionProblem as problem:
            self.leave(problem.code, str(problem))
            self.close()
        took = time.thread_time() - began + CALL_SECONDS * self._num_called
        if (took > QUICK_SECONDS or self.sated) and not (self._trusted or self._closed):
            self._transport.pause_reading()
            self._resting = self._loop.call_later(self._server.pace.spend(took), self._go_on)

    def _go_on(self) -> None:
        self._resting = None
        if not self._closed:
            self._transport.resume_reading()
            self.data_received(b"")  # what is left

    @property
    def sated(self) -> bool:
        """Who has shown no key gets few calls begun, and few frames that ask for nothing read, at once."""
        return not self._trusted and (self._num_called >= STRANGERS_CALLS or self._num_idle >= STRANGERS_FRAMES)

    def trust(self) -> None:
        """A call over it was let in: it is paced no more."""
        self._trusted = True
        if self._resting is not None:
            self._resting.cancel()
            self._resting = self._loop.call_later(0, self._go_on)

    def connection_lost(self, error: Exception | None) -> None:
        """All calls are lost."""
        self._closed = True
        self._server.closed(self)
        for call in list(self.calls.values()):
            call.lost()

    def pause_writing(self) -> None:
        """The peer reads too slowly."""
        self._full = True

    def resume_writing(self) -> None:
        """It has caught up."""
        self._full = False
        self._wake()

    # What comes: see Received.

    def data(self, stream: int, data: bytes, size: int, *, end: bool) -> None:
        """Of messages."""
        self._allowed -= size
        self._owed += size
        if self._allowed < 0:
            raise ConnectionProblem(Problem.FLOW_CONTROL_ERROR, "more came than was allowed")
        if self._owed >= CONNECTION_WINDOW // 2:
            self.send(frames.window_update(0, self._owed))
            self._allowed, self._owed = self._allowed + self._owed, 0
        if stream == 0 or stream > self._last_stream:
            raise ConnectionProblem(Problem.PROTOCOL_ERROR, "data of no call")
        call = self.calls.get(stream)
        if call is None or not (size or end):
            self._count()
        if call is not None:
            call.came(data, size, end=end)

    def headers(self, stream: int, headers: list[Header], *, end: bool) -> None:
        """Of a call that begins, or ends."""
        if (known := self.calls.get(stream)) is not None:
            if end:
                known.came(b"", 0, end=True)
            else:
                self._refuse(stream, Problem.PROTOCOL_ERROR)
                known.lost()
        elif not stream % 2:
            raise ConnectionProblem(Problem.PROTOCOL_ERROR, "a call of a wrong number")
        elif stream > self._last_stream:
            self._call(stream, headers, end=end)
        else:
            self._count()

    def _refuse(self, stream: int, code: Problem) -> None:
        self._count(RESET_WEIGHT)
        self.send(frames.reset(stream, code))

    def _call(self, stream: int, headers: list[Header], *, end: bool) -> None:
        self._last_stream = stream
        self._num_called += 1
        try:
            head = read_head(headers)
        except StreamProblem:
            return self._refuse(stream, Problem.PROTOCOL_ERROR)
        if self.leaving is not None or len(self.calls) >= self._server.max_streams:
            return self._refuse(stream, Problem.REFUSED_STREAM)
        if head.problem:
            self._count(RESET_WEIGHT)
            self.send_headers(stream, ((b":status", head.problem.encode()),), end=True)
            if not end:
                self.send(frames.reset(stream, Problem.NO_ERROR))
            return
        call = self.calls[stream] = self._server.called(self, stream, head)
        if end:
            call.came(b"", 0, end=True)

    def control(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        """What is about calls, not of them."""
        if kind == frames.WINDOW_UPDATE:
            self._widen(stream, frames.read_increment(payload))
        elif kind == frames.RST_STREAM:
            if len(payload) != 4 or stream == 0 or stream > self._last_stream:
                raise ConnectionProblem(Problem.PROTOCOL_ERROR, "a reset of no call")
            if (given_up := self.calls.get(stream)) is not None:
                self._count(0 if given_up.answered else RESET_WEIGHT - 1)
                given_up.lost()
        elif kind == frames.SETTINGS:
            self._settings(flags, stream, payload)
        elif kind == frames.PING:
            if len(payload) != 8 or stream:
                raise ConnectionProblem(Problem.FRAME_SIZE_ERROR, "a ping of a wrong size")
            if not flags & frames.ACK:
                self.send(frames.frame(frames.PING, frames.ACK, payload=payload))
        self._count()

    def _settings(self, flags: int, stream: int, payload: bytes) -> None:
        told = frames.read_settings(flags, stream, payload)
        if flags & frames.ACK:
            return
        window = told.get(frames.INITIAL_WINDOW_SIZE, self.initial_window)
        if more := window - self.initial_window:
            self._count(len(self.calls) // CALLS_WIDENED)
            self.initial_window = window
            for call in list(self.calls.values()):
                call.widen(more)
        self.send(frames.frame(frames.SETTINGS, frames.ACK))

    def _widen(self, stream: int, size: int) -> None:
        if stream == 0:
            self._window = frames.widened(self._window, size)
            self._wake()
        elif (call := self.calls.get(stream)) is not None:
            call.widen(size)

    def _count(self, weight: int = 1) -> None:
        """A frame came that asks for nothing. Raises ConnectionProblem when there are too many."""
        self._num_idle += 1
        self._patience.spend(weight, self.heard)

    # What goes.

    @property
    def room(self) -> int:
        """Bytes of messages that may be sent now."""
        return 0 if self._full or self._pending >= MAX_PENDING_BYTES else self._window

    def send_data(self, stream: int, data: bytes) -> None:
        """Of a call, MAX_FRAME_BYTES at most, for which there is room."""
        self._patience.restore()
        self._window -= len(data)
        self.send(frames.data_frame(stream, data))

    def send_headers(self, stream: int, headers: tuple[tuple[bytes, bytes], ...], *, end: bool) -> None:
        """Before or behind a call's messages."""
        self.send(frames.header_frames(stream, headers, end=end))

    def send(self, data: bytes) -> None:
        """Frames, with all else of this turn of the event loop in one piece."""
        self._out.append(data)
        self._pending += len(data)
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        if not self._closed:
            self._transport.write(b"".join(self._out))
            if self._transport.get_write_buffer_size() > MAX_UNREAD_BYTES:
                self.cut()
        self._out.clear()
        self._pending = 0
        self._wake()

    def _wake(self) -> None:
        """As many calls as may find room, in their turn: each that sends, or leaves, wakes others."""
        if (room := self.room) > 0:
            ready = (call for call in self.waiting if call.window > 0)
            for call in list(islice(ready, 1 + room // ROOM_EACH)):
                call.wake()

    # Its life.

    @property
    def greeted(self) -> bool:
        """Whether the client's first settings have come."""
        return self._reader.greeted

    def forget(self, call: Call) -> None:
        """A call has ended."""
        self.calls.pop(call.stream, None)
        if call in self.waiting:
            del self.waiting[call]
            self._wake()
        self.idle_since = self._loop.time()

    def ping(self) -> None:
        """Ask for a sign of life."""
        self.pinged = self._loop.time()
        self.send(frames.frame(frames.PING, payload=bytes(8)))

    def leave(self, code: Problem = Problem.NO_ERROR, text: str = "") -> None:
        """Take no more calls; the client makes them over another connection."""
        if self.leaving is None:
            self.leaving = self._loop.time()
            self.send(frames.goaway(self._last_stream, code, text))

    def close(self) -> None:
        """End it behind what was sent."""
        self._flush()
        self._closed = True
        self._transport.close()

    def cut(self) -> None:
        """End it now."""
        self._closed = True
        self._transport.abort()

"""One connection of HTTP/2: frames in and out, windows, and what bounds a peer who keeps to no measure."""

import asyncio
import random
import ssl
import time
from typing import Protocol

from polyfleet.gateway.grpc.http2 import frames
from polyfleet.gateway.grpc.http2.call import WINDOW, Call
from polyfleet.gateway.grpc.http2.frames import ConnectionProblem, NotHttp2, Problem, StreamProblem
from polyfleet.gateway.grpc.http2.heads import Head, HeadReader, check_fields, peer_name
from polyfleet.gateway.grpc.http2.hpack import Header
from polyfleet.gateway.grpc.http2.inflow import CONNECTION_WINDOW, Inflow
from polyfleet.gateway.grpc.http2.patience import RESET_WEIGHT
from polyfleet.gateway.grpc.http2.reading import FrameReader
from polyfleet.gateway.grpc.http2.sending import MAX_UNREAD_BYTES, Sender
from polyfleet.gateway.grpc.http2.streams import Streams
from polyfleet.gateway.pace import Pace
from polyfleet.gateway.ports.doors import Visit

QUICK_SECONDS = 0.0005  # what takes longer to read, of somebody who has shown no key, is paced
CALL_SECONDS, STRANGERS_CALLS = 0.001, 4  # what refusing a call takes, and so many are begun at once
STRANGERS_FRAMES = 256  # that ask for nothing, read at once
ALIVE, LEAVING = bytes(8), b"leaving?"  # what pings hold
STRANGERS_UNREAD_BYTES = 512 * 1024  # of answers that he does not read
STRANGERS_STREAMS = 100  # open at once, the fewest that RFC 9113 recommends to allow
CALLS_WIDENED = 16  # in the time that an idle frame takes


class CallServer(Protocol):
    """Who answers a connection's calls."""

    max_streams: int  # of a connection, at once
    max_header_bytes: int
    pace: Pace  # of strangers

    def opened(self, connection: "Connection") -> None:
        """It is there."""
        ...

    def closed(self, connection: "Connection") -> None:
        """It is gone, and its calls with it."""
        ...

    def parted(self, connection: "Connection") -> None:
        """It gets no more calls."""
        ...

    def called(self, connection: "Connection", stream: int, head: Head) -> Call:
        """Begin a call."""
        ...


class Connection(Sender):
    """Lives in one event loop. Times are the loop's seconds."""

    def __init__(self, server: CallServer, visit: Visit) -> None:
        super().__init__()
        self._server, self.visit = server, visit
        self.max_unread = STRANGERS_UNREAD_BYTES
        self._streams = Streams(min(STRANGERS_STREAMS, server.max_streams))
        self.calls = self._streams.calls
        self.peer = ""
        self._trusted = False
        self._resting: asyncio.TimerHandle | None = None  # until it is read on
        self.leaving: float | None = None  # since when its client is asked to go
        self.left = False  # it gets no more calls
        self.opened = self.heard = self.idle_since = self._loop.time()
        self.pinged: float | None = None  # since when it was asked for a sign of life
        self.spread = random.uniform(0.9, 1.1)  # so that not all grow old together
        self._reader = FrameReader(self)
        self._heads, self._inflow = HeadReader(), Inflow()
        self._num_called = self._num_idle = 0
        self._dropped = 0  # bytes that came behind its end

    # asyncio.Protocol.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for who it is."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.peer = peer_name(*(transport.get_extra_info("peername") or ("", 0))[:2])
        self.visit.close = self.cut
        self._server.opened(self)

    def data_received(self, data: bytes) -> None:
        """Frames, or parts of them."""
        if self._closed:
            self._dropped += len(data)
            if self._dropped > CONNECTION_WINDOW:  # more than can have been on its way
                self._transport.abort()
            return
        if data:
            self.heard, self.pinged = self._loop.time(), None
        self._num_called = self._num_idle = 0
        began = 0.0 if self._trusted else time.thread_time()
        try:
            self._reader.feed(data)
        except NotHttp2 as other:
            self.send(other.answer)
            self.close()
        except ConnectionProblem as problem:
            self.part(problem.code, str(problem))
            self.close()
        if self._trusted or self._closed:
            return
        took = time.thread_time() - began + CALL_SECONDS * self._num_called
        if took > QUICK_SECONDS or self.sated:
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
        """A call over it was let in: it is paced no more, and bounded less."""
        if self._trusted:
            return
        self._trusted, self._streams.most = True, self._server.max_streams
        self.max_unread = MAX_UNREAD_BYTES
        self.send(frames.settings({frames.MAX_CONCURRENT_STREAMS: self._server.max_streams}))
        self._inflow.trust()
        self._grant()
        if self._resting is not None:
            self._resting.cancel()
            self._resting = self._loop.call_later(0, self._go_on)

    def connection_lost(self, error: Exception | None) -> None:
        """All calls are lost."""
        self._closed = True
        self._server.closed(self)
        for call in list(self.calls.values()):
            call.lost()

    # What comes: see Received.

    def begun(self) -> None:
        """Greet, which no client gets but one of HTTP/2."""
        tls: ssl.SSLObject | None = self._transport.get_extra_info("ssl_object")
        self.send(frames.greeting(self._streams.most, self._server.max_header_bytes, WINDOW))
        if self.left:
            self.send(frames.goaway(0, Problem.NO_ERROR))
        if tls is not None and tls.selected_alpn_protocol() != "h2":
            raise ConnectionProblem(Problem.INADEQUATE_SECURITY, "over TLS, HTTP/2 is agreed on by ALPN")

    def data(self, stream: int, data: bytes, size: int, *, end: bool) -> None:
        """Of messages."""
        self._inflow.came(size)
        call = self._streams.open(stream, end=end)
        if call is None or not (size or end):
            self._count()
        if call is not None:
            call.came(data, size, end=end)
        else:
            self._inflow.took(size)
        self._grant()

    def headers(self, stream: int, headers: tuple[Header, ...], *, end: bool) -> None:
        """Of a call that begins, or ends."""
        if self._streams.begin(stream, end=end):
            self._call(stream, headers, end=end)
        elif (call := self._streams.open(stream, end=end)) is None:
            self._count()
        else:
            self._trailers(call, headers, end=end)

    def _trailers(self, call: Call, headers: tuple[Header, ...], *, end: bool) -> None:
        try:
            check_fields(headers)
        except StreamProblem:
            end = False
        if end or call.half_closed:  # which is a fault of its own
            call.came(b"", 0, end=True)
        else:
            self._refuse(call.stream, Problem.PROTOCOL_ERROR)
            call.lost()

    def _refuse(self, stream: int, code: Problem) -> None:
        self._count(RESET_WEIGHT)
        self.send(frames.reset(stream, code))

    def _call(self, stream: int, headers: tuple[Header, ...], *, end: bool) -> None:
        self._num_called += 1
        try:
            head = self._heads.read(headers)
        except StreamProblem:
            return self._refuse(stream, Problem.PROTOCOL_ERROR)
        if self.left or self._streams.full:
            return self._refuse(stream, Problem.REFUSED_STREAM)
        if head.problem:
            self._count(RESET_WEIGHT)
            self.send_headers(stream, ((b":status", head.problem.encode()),), end=True)
            if not end:
                self.send(frames.reset(stream, Problem.NO_ERROR))
            return
        call = self._server.called(self, stream, head)
        self._streams.enter(call)
        if end:
            call.came(b"", 0, end=True)

    def control(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        """What is about calls, not of them."""
        if kind == frames.WINDOW_UPDATE:
            self._widen_one(stream, frames.read_increment(payload))
        elif kind == frames.RST_STREAM:
            if (given_up := self._streams.given_up(stream)) is not None:
                self._count(0 if given_up.answered else RESET_WEIGHT - 1)
                given_up.lost()
        elif kind == frames.SETTINGS:
            self._settings(flags, payload)
        elif kind == frames.PING and not flags & frames.ACK:
            self.send(frames.ping(payload, frames.ACK))
        elif kind == frames.PING and payload == LEAVING and self.leaving is not None:
            self.part()  # the client has heard, and what it began before is here
        self._count()

    def _settings(self, flags: int, payload: bytes) -> None:
        told = frames.read_settings(flags, payload)
        if flags & frames.ACK:
            return
        window = told.get(frames.INITIAL_WINDOW_SIZE, self.initial_window)
        if more := window - self.initial_window:
            self._count(len(self.calls) // CALLS_WIDENED)
            self.initial_window = window
            for call in list(self.calls.values()):
                call.widen(more)
        self.send(frames.frame(frames.SETTINGS, frames.ACK))

    def _widen_one(self, stream: int, size: int) -> None:
        if stream == 0:
            self._widen(size)
        elif (call := self._streams.known(stream)) is not None:
            try:
                call.widen(size)
            except ConnectionProblem as problem:  # it is the stream's alone
                self._refuse(stream, problem.code)
                call.lost()

    def _count(self, weight: int = 1) -> None:
        """A frame came that asks for nothing. Raises ConnectionProblem when there are too many."""
        self._num_idle += 1
        self._patience.spend(weight, self.heard)

    def took(self, size: int) -> None:
        """So many bytes of messages are held no more."""
        if not self._trusted:
            self._inflow.took(size)
            self._grant()

    def _grant(self) -> None:
        if size := self._inflow.grant():
            self.send(frames.window_update(0, size))

    # Its life.

    @property
    def greeted(self) -> bool:
        """Whether the client's first settings have come."""
        return self._reader.greeted

    def forget(self, call: Call) -> None:
        """A call has ended."""
        self._streams.leave(call.stream, ended=call.half_closed)
        if call in self.waiting:
            del self.waiting[call]
            self._wake()
        self.idle_since = self._loop.time()

    def ping(self) -> None:
        """Ask for a sign of life."""
        self.pinged = self._loop.time()
        self.send(frames.ping(ALIVE))

    def leave(self) -> None:
        """Ask the client to make its calls over another connection; those on their way are taken until it has heard."""
        if self.leaving is not None:
            return
        self.leaving = self._loop.time()
        if self._reader.prefaced:
            self.send(frames.goaway(frames.MAX_WINDOW, Problem.NO_ERROR) + frames.ping(LEAVING))
        else:
            self.part()

    def part(self, code: Problem = Problem.NO_ERROR, text: str = "") -> None:
        """Take no more calls. Nothing happens a second time."""
        if self.left:
            return
        self.left = True
        if self._reader.prefaced:
            self.send(frames.goaway(self._streams.last, code, text))
        self._server.parted(self)

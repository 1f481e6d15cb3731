"""The caller's end of HTTP/2: one call of gRPC whose both sides stream, over a connection of its own."""

import asyncio
from collections import deque
from collections.abc import Callable
from urllib.parse import unquote

from polyfleet.gateway.grpc.http2 import frames
from polyfleet.gateway.grpc.http2.call import PREFIX_BYTES
from polyfleet.gateway.grpc.http2.frames import ConnectionProblem, NotHttp2
from polyfleet.gateway.grpc.http2.hpack import Header
from polyfleet.gateway.grpc.http2.reading import MAX_BLOCK_BYTES, FrameReader
from polyfleet.wire.auth import join_host_port

STREAM = 1  # the first of a connection, and here its only one
WINDOW = 256 * 1024  # bytes that may be under way: more would only be older news, which a worker merges
SETTINGS = {
    frames.ENABLE_PUSH: 0,
    frames.INITIAL_WINDOW_SIZE: WINDOW,
    frames.MAX_HEADER_LIST_SIZE: MAX_BLOCK_BYTES,
}
Headers = tuple[tuple[bytes, bytes], ...]


class StreamingCall(asyncio.Protocol):
    """A protocol for `create_connection`. `received` gets each message as it comes.

    `ended` has why there come no more, or what `received` raised; from then on it gets none. Lives in one event loop.
    """

    sated = False

    def __init__(
        self, path: str, metadata: tuple[tuple[str, str], ...], received: Callable[[bytes], None], max_bytes: int
    ) -> None:
        """`path`: the method's; `max_bytes`: of a message that comes."""
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[str] = self._loop.create_future()
        self._path, self._metadata, self._received, self._max_bytes = path, metadata, received, max_bytes
        self._reader = FrameReader(self, prefaced=True)
        self._parts = bytearray()  # of messages that come
        self._owed = 0  # bytes that came and were not given back
        self._window = self._all = self._initial = frames.DEFAULT_WINDOW  # to send: of the call, of all, of new ones
        self._unsent = deque[memoryview]()
        self._out: list[bytes] = []
        self._flushing = self._full = False

    # For its caller.

    def send(self, message: bytes) -> None:
        """A message, in one piece with all else of this turn of the event loop, as far as the peer takes it."""
        self._unsent.append(memoryview(b"\x00" + len(message).to_bytes(4, "big") + message))
        self._pump()

    def close(self) -> None:
        """End it now."""
        self._end("it was closed")

    # asyncio.Protocol.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Greet and call."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._tls = transport.get_extra_info("ssl_object") is not None
        greeting = frames.settings(SETTINGS) + frames.window_update(0, WINDOW - frames.DEFAULT_WINDOW)
        self._put(frames.PREFACE + greeting + frames.header_frames(STREAM, self._headers(), end=False))

    def _headers(self) -> Headers:
        host, port = self._transport.get_extra_info("peername")[:2]
        return (
            (b":method", b"POST"),
            (b":scheme", b"https" if self._tls else b"http"),
            (b":path", self._path.encode()),
            (b":authority", join_host_port(host, port).encode()),
            (b"te", b"trailers"),
            (b"content-type", b"application/grpc"),
            *((name.encode(), value.encode()) for name, value in self._metadata),
        )

    def data_received(self, data: bytes) -> None:
        """Frames, or parts of them."""
        try:
            self._reader.feed(data)
        except ConnectionProblem as problem:
            self._put(frames.goaway(0, problem.code, str(problem)))
            self._flush()
            self._end(f"what came breaks HTTP/2: {problem}")
        except NotHttp2:
            self._end("what came is no HTTP/2")
        except Exception as error:  # of `received`
            self._end(error)

    def pause_writing(self) -> None:
        """The peer reads too slowly."""
        self._full = True

    def resume_writing(self) -> None:
        """It has caught up."""
        self._full = False
        self._pump()

    def connection_lost(self, error: Exception | None) -> None:
        """The call is, too. In TLS 1.3 a server may refuse a certificate when this end has taken it for greeted."""
        why = str(error or "it was cut")
        if self._tls and not self._reader.greeted:
            why = f"TLS handshake failed: {error or 'it was cut, as by one who does not take this certificate'}"
        self._end(why)

    # What comes: see Received.

    def begun(self) -> None:
        """Servers send no preface."""

    def data(self, stream: int, data: bytes, size: int, *, end: bool) -> None:
        """Of messages."""
        self._owed += size
        if self._owed >= WINDOW // 2:
            self._put(frames.window_update(0, self._owed) + frames.window_update(STREAM, self._owed))
            self._owed = 0
        self._parts += data
        while not self.ended.done() and (size := self._whole()):
            message = bytes(self._parts[PREFIX_BYTES:size])
            del self._parts[:size]
            self._received(message)
        if end:
            self._end("the worker ended the session")

    def _whole(self) -> int:
        """Bytes of the first message with its prefix; 0 where not all of it has come, or it can't be read."""
        parts = self._parts
        if len(parts) < PREFIX_BYTES:
            return 0
        size = int.from_bytes(parts[1:PREFIX_BYTES], "big")
        if parts[0] or size > self._max_bytes:
            self._end(f"a message of {size} bytes" if size > self._max_bytes else "a message is compressed")
            return 0
        return PREFIX_BYTES + size if PREFIX_BYTES + size <= len(parts) else 0

    def headers(self, stream: int, headers: tuple[Header, ...], *, end: bool) -> None:
        """Before the messages, or behind them with the status."""
        told = dict(headers)
        if end or told.get(b":status") != b"200":
            said = unquote(told.get(b"grpc-message", b"").decode("latin-1"))
            code = told.get(b"grpc-status", b"").decode("latin-1")
            self._end(said or ("the worker ended the session" if code == "0" else f"it answered with status {code}"))

    def control(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        """Windows, settings, pings and ends; the call goes on behind a GOAWAY."""
        if kind == frames.WINDOW_UPDATE:
            size = frames.read_increment(payload)
            if stream:
                self._window = frames.widened(self._window, size)
            else:
                self._all = frames.widened(self._all, size)
            self._pump()
        elif kind == frames.PING and not flags & frames.ACK:
            self._put(frames.frame(frames.PING, frames.ACK, payload=payload))
        elif kind == frames.SETTINGS:
            told = frames.read_settings(flags, payload)
            if not flags & frames.ACK:
                self._put(frames.frame(frames.SETTINGS, frames.ACK))
                initial = told.get(frames.INITIAL_WINDOW_SIZE, self._initial)
                self._window, self._initial = frames.widened(self._window, initial - self._initial), initial
                self._pump()
        elif kind == frames.RST_STREAM:
            self._end(f"the worker reset the session, HTTP/2's code {int.from_bytes(payload, 'big')}")

    # What goes.

    def _pump(self) -> None:
        """As much of the messages as there is room for."""
        while self._unsent and not self._full:
            rest = self._unsent[0]
            size = min(len(rest), frames.MAX_FRAME_BYTES, self._window, self._all)
            if size <= 0:
                return
            self._window, self._all = self._window - size, self._all - size
            if size < len(rest):
                self._unsent[0] = rest[size:]
            else:
                self._unsent.popleft()
            self._put(frames.data_frame(STREAM, bytes(rest[:size])))

    def _put(self, data: bytes) -> None:
        self._out.append(data)
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        data, self._out = b"".join(self._out), []
        if not self._transport.is_closing():
            self._transport.write(data)

    def _end(self, why: str | Exception) -> None:
        if not self.ended.done():
            if isinstance(why, Exception):
                self.ended.set_exception(why)
            else:
                self.ended.set_result(why)
        self._transport.abort()

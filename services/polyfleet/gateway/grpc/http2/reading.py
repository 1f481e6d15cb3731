"""What a client sends, taken apart: its preface, frames, and the headers of calls out of their pieces."""

from typing import Protocol

from polyfleet.gateway.grpc.http2.frames import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEAD,
    HEADERS,
    HTTP_1,
    MAX_FRAME_BYTES,
    MAX_WINDOW,
    PREFACE,
    PUSH_PROMISE,
    SETTINGS,
    TO_HTTP_1,
    ConnectionProblem,
    NotHttp2,
    Problem,
    check,
    unpadded,
)
from polyfleet.gateway.grpc.http2.hpack import Header, HeaderDecoder

MAX_BLOCK_BYTES, MAX_PIECES = 64 * 1024, 16  # of one call's headers


class Received(Protocol):
    """Is told what has come. Its methods raise ConnectionProblem."""

    @property
    def sated(self) -> bool:
        """Whether it takes no more for now: the rest is kept until the next `feed`."""
        ...

    def begun(self) -> None:
        """It is HTTP/2."""
        ...

    def data(self, stream: int, data: bytes, size: int, *, end: bool) -> None:
        """Of messages; `size` of its bytes count, padding too."""
        ...

    def headers(self, stream: int, headers: tuple[Header, ...], *, end: bool) -> None:
        """Before a call's messages, or behind them."""
        ...

    def control(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        """Any other frame."""
        ...


class FrameReader:
    """Of one connection. No more is kept than a frame, MAX_BLOCK_BYTES of headers, and what it fed when sated."""

    def __init__(self, received: Received, *, prefaced: bool = False) -> None:
        """`prefaced`: it reads what a server sends, which has no preface."""
        self.prefaced, self.greeted = prefaced, False  # it is HTTP/2; the peer's first settings have come
        self._received = received
        self._buffer = bytearray()
        self._pieces: tuple[int, int, bytes, int] | None = None  # stream, flags, what has come, in how many
        self._decoder = HeaderDecoder(MAX_BLOCK_BYTES)

    def feed(self, data: bytes) -> None:
        """Frames, or parts of them. Raises ConnectionProblem or NotHttp2, behind which nothing can be read."""
        self._buffer += data
        buffer, at = self._buffer, 0
        if not self.prefaced:
            if not PREFACE.startswith(bytes(buffer[: len(PREFACE)])):
                raise NotHttp2(TO_HTTP_1 if HTTP_1.match(buffer) else b"")
            if len(buffer) < len(PREFACE):
                return
            self.prefaced, at = True, len(PREFACE)
            self._received.begun()
        while len(buffer) - at >= HEAD.size and not self._received.sated:
            high, low, kind, flags, stream = HEAD.unpack_from(buffer, at)
            if (size := high << 8 | low) > MAX_FRAME_BYTES:
                raise ConnectionProblem(Problem.FRAME_SIZE_ERROR, f"a frame of {size} bytes")
            if len(buffer) - at < HEAD.size + size:
                break
            at += HEAD.size + size
            self._frame(kind, flags, stream & MAX_WINDOW, bytes(buffer[at - size : at]))
        del buffer[:at]

    def _frame(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if not self.greeted and kind != SETTINGS:
            raise ConnectionProblem(Problem.PROTOCOL_ERROR, "settings come first")
        self.greeted = True
        check(kind, stream, len(payload))
        if (self._pieces is not None) != (kind == CONTINUATION):
            raise ConnectionProblem(Problem.PROTOCOL_ERROR, "headers are in pieces that belong together")
        if kind == PUSH_PROMISE:
            raise ConnectionProblem(Problem.PROTOCOL_ERROR, "a frame that no client sends")
        if kind == DATA:
            data = unpadded(flags, payload, prioritised=False)
            self._received.data(stream, data, len(payload), end=bool(flags & END_STREAM))
        elif kind == HEADERS:
            self._piece(stream, flags, unpadded(flags, payload, prioritised=True), 1)
        elif self._pieces is not None:
            first, known, block, count = self._pieces
            if stream != first:
                raise ConnectionProblem(Problem.PROTOCOL_ERROR, "headers of two calls are mixed")
            self._piece(stream, known | flags & END_HEADERS, block + payload, count + 1)
        else:
            self._received.control(kind, flags, stream, payload)

    def _piece(self, stream: int, flags: int, block: bytes, count: int) -> None:
        """A call's headers, whole or as far as they have come."""
        if len(block) > MAX_BLOCK_BYTES or count > MAX_PIECES:
            raise ConnectionProblem(Problem.ENHANCE_YOUR_CALM, "headers without end")
        if not flags & END_HEADERS:
            self._pieces = stream, flags, block, count
            return
        self._pieces = None
        self._received.headers(stream, self._decoder.decode(block), end=bool(flags & END_STREAM))

"""HTTP/2's frames and header blocks in bytes, as far as a server of gRPC writes and reads them. Pure."""

import re
import struct
from collections.abc import Mapping
from enum import IntEnum, unique
from functools import lru_cache

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HTTP_1 = re.compile(rb"[A-Z]{3,16} [/*h]")  # how its requests begin
TO_HTTP_1 = (
    b"HTTP/1.1 505 HTTP Version Not Supported\r\nconnection: close\r\ncontent-type: text/plain\r\n\r\n"
    b"This port speaks gRPC, over HTTP/2: HTTP/1.1 is spoken on another port.\n"
)
HEAD = struct.Struct(">HBBBI")  # length (16 bits and 8 more), kind, flags, stream
MAX_FRAME_BYTES = 16_384
MAX_WINDOW = 2**31 - 1
DEFAULT_WINDOW = 65_535

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
OF_CALLS, OF_CONNECTIONS = (
    frozenset({DATA, HEADERS, PRIORITY, RST_STREAM, CONTINUATION}),
    frozenset({SETTINGS, PING, GOAWAY}),
)
SIZES = {PRIORITY: 5, RST_STREAM: 4, PING: 8, WINDOW_UPDATE: 4}  # bytes, of kinds that have but one
PRIORITY_BYTES = SIZES[PRIORITY]
END_STREAM, ACK, END_HEADERS, PADDED, PRIORITISED = 0x1, 0x1, 0x4, 0x8, 0x20
ENABLE_PUSH, MAX_CONCURRENT_STREAMS, INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE, MAX_HEADER_LIST_SIZE = 2, 3, 4, 5, 6


@unique
class Problem(IntEnum):
    """HTTP/2's error codes."""

    NO_ERROR = 0x0
    PROTOCOL_ERROR = 0x1
    INTERNAL_ERROR = 0x2
    FLOW_CONTROL_ERROR = 0x3
    STREAM_CLOSED = 0x5
    FRAME_SIZE_ERROR = 0x6
    REFUSED_STREAM = 0x7
    CANCEL = 0x8
    COMPRESSION_ERROR = 0x9
    ENHANCE_YOUR_CALM = 0xB
    INADEQUATE_SECURITY = 0xC


class ConnectionProblem(Exception):
    """The peer broke a rule, so that the whole connection ends."""

    def __init__(self, code: Problem, text: str) -> None:
        super().__init__(text)
        self.code = code


class NotHttp2(Exception):
    """The peer speaks something else, and gets `answer`."""

    def __init__(self, answer: bytes) -> None:
        super().__init__()
        self.answer = answer


class StreamProblem(Exception):
    """A call can't be one, which ends it as a PROTOCOL_ERROR, and nothing else of its connection."""


def frame(kind: int, flags: int = 0, stream: int = 0, payload: bytes = b"") -> bytes:
    """One frame."""
    size = len(payload)
    return HEAD.pack(size >> 8, size & 0xFF, kind, flags, stream) + payload


def data_frame(stream: int, data: bytes) -> bytes:
    """A part of a message, of MAX_FRAME_BYTES at most."""
    size = len(data)
    return HEAD.pack(size >> 8, size & 0xFF, DATA, 0, stream) + data


def settings(values: Mapping[int, int]) -> bytes:
    """A SETTINGS frame."""
    return frame(SETTINGS, payload=b"".join(struct.pack(">HI", key, value) for key, value in values.items()))


def greeting(max_streams: int, max_header_bytes: int, window: int) -> bytes:
    """What a server begins with: `window` of each call, in bytes."""
    own = {MAX_CONCURRENT_STREAMS: max_streams, INITIAL_WINDOW_SIZE: window, MAX_HEADER_LIST_SIZE: max_header_bytes}
    return settings(own)


def check(kind: int, stream: int, size: int) -> None:
    """Raises ConnectionProblem for a frame of a wrong size, or on a stream where its kind has no place."""
    if (kind in OF_CALLS and not stream) or (kind in OF_CONNECTIONS and stream):
        raise ConnectionProblem(Problem.PROTOCOL_ERROR, "a frame on a stream that has none of its kind")
    if size != SIZES.get(kind, size):
        raise ConnectionProblem(Problem.FRAME_SIZE_ERROR, f"a frame of {size} bytes")


def read_settings(flags: int, payload: bytes) -> dict[int, int]:
    """What a SETTINGS frame has in the end. Raises ConnectionProblem for what can't be."""
    if len(payload) % 6 or (flags & ACK and payload):
        raise ConnectionProblem(Problem.FRAME_SIZE_ERROR, "SETTINGS of a wrong size")
    values = list(struct.iter_unpack(">HI", payload))
    for key, value in values:
        if key == ENABLE_PUSH and value > 1:
            raise ConnectionProblem(Problem.PROTOCOL_ERROR, "ENABLE_PUSH is neither 0 nor 1")
        if key == INITIAL_WINDOW_SIZE and value > MAX_WINDOW:
            raise ConnectionProblem(Problem.FLOW_CONTROL_ERROR, "INITIAL_WINDOW_SIZE is too large")
        if key == MAX_FRAME_SIZE and not MAX_FRAME_BYTES <= value < 2**24:
            raise ConnectionProblem(Problem.PROTOCOL_ERROR, "MAX_FRAME_SIZE is out of range")
    return dict(values)


def read_increment(payload: bytes) -> int:
    """What a WINDOW_UPDATE frame gives. Raises ConnectionProblem where that is nothing."""
    if not (size := int.from_bytes(payload, "big") & MAX_WINDOW):
        raise ConnectionProblem(Problem.PROTOCOL_ERROR, "a window that does not grow")
    return size


def widened(window: int, size: int) -> int:
    """A window that takes so many bytes more. Raises ConnectionProblem where none can."""
    if (window := window + size) > MAX_WINDOW:
        raise ConnectionProblem(Problem.FLOW_CONTROL_ERROR, "a window is too large")
    return window


def ping(payload: bytes, flags: int = 0) -> bytes:
    """8 bytes, which come back in one with ACK."""
    return frame(PING, flags, payload=payload)


def window_update(stream: int, size: int) -> bytes:
    """Leave for so many bytes more; stream 0: of the connection."""
    return frame(WINDOW_UPDATE, stream=stream, payload=size.to_bytes(4, "big"))


def reset(stream: int, code: Problem) -> bytes:
    """The end of one stream."""
    return frame(RST_STREAM, stream=stream, payload=code.to_bytes(4, "big"))


def goaway(last_stream: int, code: Problem, text: str = "") -> bytes:
    """No streams behind `last_stream` are answered."""
    return frame(GOAWAY, payload=struct.pack(">II", last_stream, code) + text.encode())


def unpadded(flags: int, payload: bytes, *, prioritised: bool) -> bytes:
    """What a DATA or HEADERS frame holds. Raises ConnectionProblem where it is padding beyond its end.

    `prioritised`: of a kind that may tell a priority, which says nothing any more.
    """
    padding = 0
    if flags & PADDED:
        padding, payload = payload[0] if payload else 256, payload[1:]
    if prioritised and flags & PRIORITISED:
        if len(payload) < PRIORITY_BYTES:
            raise ConnectionProblem(Problem.FRAME_SIZE_ERROR, "headers that end within their priority")
        payload = payload[PRIORITY_BYTES:]
    if padding > len(payload):
        raise ConnectionProblem(Problem.PROTOCOL_ERROR, "the padding is longer than its frame")
    return payload[: len(payload) - padding]


@lru_cache(maxsize=128)
def header_block(headers: tuple[tuple[bytes, bytes], ...]) -> bytes:
    """Headers as HPACK's literals, which need no state that both ends share."""
    return b"".join(b"\x00" + _string(name) + _string(value) for name, value in headers)


def header_frames(stream: int, headers: tuple[tuple[bytes, bytes], ...], *, end: bool, before: bytes = b"") -> bytes:
    """A HEADERS frame, and CONTINUATION behind it where it is too long for one. `before`: what HPACK is told first."""
    block, kind, flags, frames = before + header_block(headers), HEADERS, END_STREAM if end else 0, b""
    while len(block) > MAX_FRAME_BYTES:
        frames += frame(kind, flags, stream, block[:MAX_FRAME_BYTES])
        block, kind, flags = block[MAX_FRAME_BYTES:], CONTINUATION, 0
    return frames + frame(kind, flags | END_HEADERS, stream, block)


def _string(value: bytes) -> bytes:
    """Its length in HPACK's integers with a prefix of 7 bits, and the bytes as they are."""
    size = len(value)
    if size < 0x7F:
        return bytes((size,)) + value
    size, length = size - 0x7F, bytearray(b"\x7f")
    while size >= 0x80:
        length.append(size & 0x7F | 0x80)
        size >>= 7
    length.append(size)
    return bytes(length) + value

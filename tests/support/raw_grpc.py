"""A client of the gRPC port that sends HTTP/2 frames as it likes."""

import asyncio
import struct
from typing import TYPE_CHECKING, Any

from tests.support.raw_http import RawConnection

if TYPE_CHECKING:
    from typing_extensions import Self

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 8, 9
END_STREAM, END_HEADERS, ACK = 1, 4, 1


def frame(kind: int, flags: int = 0, stream: int = 0, payload: bytes = b"") -> bytes:
    """One frame."""
    return struct.pack(">I", len(payload))[1:] + bytes((kind, flags)) + struct.pack(">I", stream) + payload


GREETING = PREFACE + frame(SETTINGS)


def prefixed(message: bytes) -> bytes:
    """A message as it stands in DATA frames, not compressed."""
    return b"\x00" + len(message).to_bytes(4, "big") + message


def fields(**headers: str) -> bytes:
    """A header block without compression; `_` in a name means `-`, and `p_` in front a pseudo header."""
    block = b""
    for name, value in headers.items():
        key = (":" + name[2:] if name.startswith("p_") else name).replace("_", "-").encode()
        block += b"\x00" + _string(key) + _string(value.encode())
    return block


def call(stream: int, method: str, flags: int = END_HEADERS, **more: str) -> bytes:
    """The headers of a call."""
    block = fields(
        p_method="POST", p_scheme="http", p_path=method, p_authority="x", te="trailers", content_type="application/grpc"
    )
    return frame(HEADERS, flags, stream, block + fields(**more))


def _string(text: bytes) -> bytes:
    if len(text) < 127:
        return bytes((len(text),)) + text
    rest, encoded = len(text) - 127, b"\x7f"
    while rest >= 128:
        encoded, rest = encoded + bytes((rest % 128 + 128,)), rest // 128
    return encoded + bytes((rest,)) + text


class _Following(asyncio.StreamReaderProtocol):
    """Ends a connection that the server has ended, as clients do."""

    def eof_received(self) -> bool:
        super().eof_received()
        return False


class RawHttp2(RawConnection):
    """One connection to `port` of loopback, with its preface and settings sent."""

    @classmethod
    async def open(cls, port: int, data: bytes = GREETING, **options: Any) -> "Self":
        """Connect and send `data`."""
        loop, reader = asyncio.get_running_loop(), asyncio.StreamReader()
        transport, protocol = await loop.create_connection(lambda: _Following(reader), "127.0.0.1", port, **options)
        connection = cls(reader, asyncio.StreamWriter(transport, protocol, reader, loop))
        connection.writer.write(data)
        return connection

    async def frames_until(self, kind: int, stream: int) -> bytes:
        """The payload of the first such frame; b"" when the connection ends without."""
        try:
            while True:
                head = await self.reader.readexactly(9)
                payload = await self.reader.readexactly(int.from_bytes(head[:3], "big"))
                if head[3] == kind and int.from_bytes(head[5:], "big") == stream:
                    return payload
        except (asyncio.IncompleteReadError, OSError):
            return b""

    async def ended(self) -> None:
        """Until the server has ended the connection."""
        try:
            while await self.reader.read(65536):
                pass
        except OSError:
            pass

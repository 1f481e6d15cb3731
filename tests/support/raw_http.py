"""A client of the HTTP port that sends bytes as it likes."""

import asyncio
import json
import socket
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import Self


class RawConnection:
    """One connection to `port` of loopback."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def open_narrow(cls, port: int, data: bytes) -> "RawConnection":
        """As `open`, over a connection that holds few bytes on their way, and reads none before it is asked to."""
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.setblocking(False)
        await asyncio.get_running_loop().sock_connect(client, ("127.0.0.1", port))
        reader, writer = await asyncio.open_connection(sock=client, limit=1024)
        writer.write(data)
        return cls(reader, writer)

    @classmethod
    async def open(cls, port: int, data: bytes = b"", **options: Any) -> "Self":
        """Connect and send `data`."""
        connection = cls(*await asyncio.open_connection("127.0.0.1", port, **options))
        connection.writer.write(data)
        return connection

    async def send(self, data: bytes) -> bool:
        """Whether the server still took it."""
        if self.writer.is_closing():
            return False
        try:
            self.writer.write(data)
            await self.writer.drain()
        except OSError:
            return False
        return True

    async def rest(self) -> bytes:
        """All that comes until the server ends the connection."""
        data = b""
        try:
            while chunk := await self.reader.read(65536):
                data += chunk
        except OSError:
            pass
        return data

    async def reply(self) -> tuple[int, dict[str, str], bytes]:
        """One answer with a content-length: status, headers, body."""
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
        body = await self.reader.readexactly(int(headers.get("content-length", 0)))
        return int(head[0].split()[1]), headers, body

    async def error(self) -> int:
        """The status of an answer that has to be an error in OpenAI's shape and the end of the connection."""
        status, headers, body = await self.reply()
        assert set(json.loads(body)["error"]) == {"message", "type", "param", "code"}
        assert headers["x-request-id"]
        assert headers["connection"] == "close"
        assert await self.rest() == b""
        return status

    def abort(self) -> None:
        """Reset it."""
        self.writer.transport.abort()

"""The gateway's server of HTTP/2 with a few methods of bytes, for tests of the protocol itself.

python -m tests.support.echo_server HOST:PORT   # for other clients, until it is interrupted
"""

import asyncio
import ssl
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc

from polyfleet.gateway.grpc.http2.server import Bounds, Http2Server
from polyfleet.gateway.ports.doors import Doors
from polyfleet.gateway.ports.taking import opened

SERVICE = "test.Echo"
EACH, HANG = f"/{SERVICE}/Each", f"/{SERVICE}/Hang"
BOUNDS = Bounds(
    max_streams=1024,
    max_message_bytes=4 * 1024 * 1024,
    max_header_bytes=16 * 1024,
    handshake=10.0,
    idle=300.0,
    age=3600.0,
    age_grace=3600.0,
)


class Echo:
    """`Each` gives every message back, `All` all of them together, `Fail` a status, `Hang` nothing for ever."""

    def __init__(self) -> None:
        self.heard: Callable[[str], None] = lambda _: None  # is told who is known
        self.hanging = self.cancelled = 0
        self.written = 0

    async def each(self, messages: AsyncIterator[bytes], context: Any) -> None:
        """In turn, with what came as metadata behind them."""
        self.heard(context.peer())
        async for message in messages:
            await context.write(message)
            self.written += 1
        own = [(key, value) for key, value in context.invocation_metadata() if key.startswith("x-")]
        context.set_trailing_metadata(own)

    async def all(self, messages: AsyncIterator[bytes], _: Any) -> bytes:
        """One answer."""
        return b"".join([message async for message in messages])

    async def fail(self, messages: AsyncIterator[bytes], context: Any) -> None:
        """Behind the first message, which is the details."""
        async for message in messages:
            await context.abort(grpc.StatusCode.DATA_LOSS, message.decode(), (("why-bin", b"\x00\xff"),))

    async def hang(self, _: AsyncIterator[bytes], context: Any) -> None:
        """Until it is cancelled."""
        self.hanging += 1
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.hanging -= 1

    async def many(self, messages: AsyncIterator[bytes], _: Any) -> AsyncIterator[bytes]:
        """As many answers of as many bytes as the message says."""
        async for message in messages:
            count, size = map(int, message.split())
            for _ in range(count):
                yield bytes(size)
                self.written += 1

    async def broken(self, _messages: AsyncIterator[bytes], _: Any) -> None:
        """A fault of its own."""
        raise RuntimeError("secret")

    def handler(self) -> Any:
        """Of all methods."""
        make = grpc.stream_stream_rpc_method_handler
        streams = {"Each": self.each, "Fail": self.fail, "Hang": self.hang, "Many": self.many, "Broken": self.broken}
        handlers = {name: make(method) for name, method in streams.items()}
        handlers["All"] = grpc.stream_unary_rpc_method_handler(self.all)
        return grpc.method_handlers_generic_handler(SERVICE, handlers)


@asynccontextmanager
async def echo_server(
    address: str = "127.0.0.1:0", *, tls: ssl.SSLContext | None = None, **bounds: Any
) -> AsyncIterator[tuple[Http2Server, Echo, int]]:
    """The server, what it serves, and its port."""
    (listener, port), echo = opened(address, "--listen"), Echo()
    server = Http2Server(listener, Doors(100, 100, lambda _: None), BOUNDS._replace(**bounds), (), tls)
    server.add_generic_rpc_handlers([echo.handler()])
    echo.heard = server.heard
    await server.start()
    watching = asyncio.create_task(server.watch())
    try:
        yield server, echo, port
    finally:
        watching.cancel()
        await server.stop(0.0)


def method(channel: Any, name: str) -> Any:
    """A call of bytes."""
    kind = channel.stream_unary if name == "All" else channel.stream_stream
    return kind(f"/{SERVICE}/{name}")


async def serve(address: str) -> None:
    """Until it is cancelled."""
    async with echo_server(address):
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1]))

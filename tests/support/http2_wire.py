"""A connection of the gateway's HTTP/2 without a network: a client's bytes go in, the server's are kept."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, cast

from tests.support.echo_server import BOUNDS, Echo

from polyfleet.gateway.grpc.http2.connection import Connection
from polyfleet.gateway.grpc.http2.server import Http2Server
from polyfleet.gateway.ports.doors import Doors, Visit

Done = TypeVar("Done")


class Wire(asyncio.Transport):
    """Takes whatever is written, at once; the connection is lost a turn after it is ended."""

    def __init__(self, **bounds: Any) -> None:
        super().__init__({"peername": ("127.0.0.1", 1)})
        self.echo = Echo()
        self.server = Http2Server(cast(Any, None), Doors(1, 1, lambda _: None), BOUNDS._replace(**bounds), ())
        self.server.add_generic_rpc_handlers([self.echo.handler()])
        self.echo.heard = self.server.heard
        self.connection = Connection(self.server, Visit("127.0.0.1", lambda: None))
        self.sent = bytearray()
        self.over = False
        self.connection.connection_made(self)

    def frames(self) -> list[tuple[int, int, int, bytes]]:
        """Kind, flags, stream and payload of all whole ones that were sent and not taken before."""
        found = []
        while len(self.sent) >= 9 + (size := int.from_bytes(self.sent[:3], "big")) and len(self.sent) >= 9:
            stream = int.from_bytes(self.sent[5:9], "big")
            found.append((self.sent[3], self.sent[4], stream, bytes(self.sent[9 : 9 + size])))
            del self.sent[: 9 + size]
        return found

    async def feed(self, data: bytes, turns: int = 5) -> None:
        """What the client sends, and some turns of the event loop."""
        if not self.over:
            self.connection.data_received(data)
        for _ in range(turns):
            await asyncio.sleep(0)

    # asyncio.Transport.

    def write(self, data: Any) -> None:
        self.sent += data

    def get_write_buffer_size(self) -> int:
        return 0

    def can_write_eof(self) -> bool:
        return False

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def close(self) -> None:
        self.abort()

    def abort(self) -> None:
        if not self.over:
            self.over = True
            asyncio.get_running_loop().call_soon(self.connection.connection_lost, None)


def in_a_loop(work: Callable[[], Awaitable[Done]]) -> Done:
    """Its result, in an event loop of its own where nothing may fail unseen, and nothing is left behind."""

    async def run() -> Done:
        faults: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, fault: faults.append(fault))
        done = await work()
        for _ in range(5):
            await asyncio.sleep(0)
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not left, left
        assert not faults, faults
        return done

    return asyncio.run(run())

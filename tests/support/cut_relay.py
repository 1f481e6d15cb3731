"""A relay before a worker, by which a test cuts its connections in the middle of an answer."""

import asyncio
import contextlib
from types import TracebackType

PIECE = 100  # bytes that are passed on together


class CutRelay:
    """`async with CutRelay("127.0.0.1:1234") as relay`: connect to `relay.address`.

    `relay.arm(2000)`: once so many more bytes have come from the worker, all connections end, as when it dies. New ones
    are taken at once, as by one that is started again.
    """

    def __init__(self, target: str) -> None:
        self._host, _, port = target.rpartition(":")
        self._port = int(port)
        self._left = 0
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.address = ""
        self.cuts = 0

    async def __aenter__(self) -> "CutRelay":
        self._server = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self._server.close()
        self._cut()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def arm(self, after_bytes: int) -> None:
        """Cut then; 0: never."""
        self._left = after_bytes

    def _cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        above, below = await asyncio.open_connection(self._host, self._port)
        self._writers |= {writer, below}
        for task in (self._pass(reader, below, counted=False), self._pass(above, writer, counted=True)):
            made = asyncio.create_task(task)
            self._tasks.add(made)
            made.add_done_callback(self._tasks.discard)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, counted: bool) -> None:
        with contextlib.suppress(OSError):
            while piece := await reader.read(PIECE):
                writer.write(piece)
                await writer.drain()
                if counted and self._left:
                    self._left = max(0, self._left - len(piece))
                    if not self._left:
                        self.cuts += 1
                        self._cut()
        writer.close()

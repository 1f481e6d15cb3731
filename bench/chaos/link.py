"""A TCP relay before a process, whose network it makes worse: slow, cut, silent one way or both, half-open."""

import asyncio
import contextlib
from types import TracebackType

PIECE = 16 * 1024  # bytes that are passed on together
UP, DOWN = "up", "down"  # towards the process behind the link, and from it


class Link:
    """`async with Link("127.0.0.1:1234", "127.0.0.2:1234") as link`: connect to `link.address`; port 0: any free one.

    What a silent way holds back is passed on once it is healed, as by TCP after a partition, unless it was cut.
    """

    def __init__(self, target: str, listen: str = "127.0.0.1:0") -> None:
        self._target, self._listen = target, listen
        self._ways = {UP: asyncio.Event(), DOWN: asyncio.Event()}
        self._seconds_per_byte = 0.0
        self._left = 0  # bytes from above until the cut that `arm` asked for; 0: none
        self._below: set[asyncio.StreamWriter] = set()
        self._above: set[asyncio.StreamWriter] = set()
        self._stale: set[asyncio.StreamWriter] = set()  # whose other ends have gone without a word
        self._tasks: set[asyncio.Task[None]] = set()
        self.address = ""
        self.cuts = 0
        self.heal()

    async def __aenter__(self) -> "Link":
        host, _, port = self._listen.rpartition(":")
        self._server = await asyncio.start_server(self._connect, host, int(port))
        self.address = f"{host}:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self._server.close()
        self.cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def heal(self) -> None:
        """As good as new; who was left with a half-open connection learns now that it is none."""
        self._seconds_per_byte = 0.0
        for way in self._ways.values():
            way.set()
        self._abort(self._stale)

    def lead_to(self, target: str) -> None:
        """New connections go there."""
        self._target = target

    def slow(self, bytes_per_second: float) -> None:
        """Each connection passes so much each way."""
        self._seconds_per_byte = 1 / bytes_per_second

    def silence(self, *ways: str) -> None:
        """Nothing passes there: by default neither way. Connections stay, and new ones are taken."""
        for way in ways or (UP, DOWN):
            self._ways[way].clear()

    def cut(self) -> None:
        """All connections end at both ends; new ones are welcome."""
        self.cuts += 1
        self._abort(self._below | self._above | self._stale)

    def half_open(self) -> None:
        """The process loses all its connections, and who called it hears nothing of that."""
        self.silence()
        self._stale |= self._below
        self._abort(self._above)

    def arm(self, after_bytes: int) -> None:
        """Cut once so many more bytes have come from the process; 0: don't."""
        self._left = after_bytes

    def _abort(self, writers: set[asyncio.StreamWriter]) -> None:
        for writer in list(writers):
            writer.transport.abort()
            for each in (self._below, self._above, self._stale):
                each.discard(writer)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, _, port = self._target.rpartition(":")
        try:
            above, up = await asyncio.open_connection(host, int(port))
        except OSError:
            writer.transport.abort()
            return
        self._below.add(writer)
        self._above.add(up)
        for task in (self._pass(reader, up, UP), self._pass(above, writer, DOWN)):
            made = asyncio.create_task(task)
            self._tasks.add(made)
            made.add_done_callback(self._tasks.discard)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: str) -> None:
        with contextlib.suppress(OSError):
            while piece := await reader.read(PIECE if not self._left else 100):
                await asyncio.sleep(len(piece) * self._seconds_per_byte)
                await self._ways[way].wait()
                writer.write(piece)
                await writer.drain()
                if way == DOWN and self._left:
                    self._left = max(0, self._left - len(piece))
                    if not self._left:
                        self.cut()
        if writer not in self._stale:
            writer.close()

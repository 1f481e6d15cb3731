"""A TCP connection whose bytes a gRPC stream of `CarriedBytes` carries on: the same at both ends of `Agents.Carry`."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress

from polyfleet.process.tasks import end
from polyfleet.v1 import agents_pb2 as pb

PIECE_BYTES = 64 * 1024
BEAT_SECONDS = 1.0
Send = Callable[[pb.CarriedBytes], Awaitable[None]]


class Silence:
    """Counts beats without news of the other end, so that an event loop that was held up is no silent peer."""

    def __init__(self, seconds: float) -> None:
        self._most = round(seconds / BEAT_SECONDS)
        self._beats = 0

    def broken(self) -> None:
        """There was news."""
        self._beats = 0

    async def lasts(self) -> None:
        """Returns when there was none for all of the time."""
        while self._beats < self._most:
            await asyncio.sleep(BEAT_SECONDS)
            self._beats += 1


async def carry(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    messages: AsyncIterator[pb.CarriedBytes],
    send: Send,
    sent: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """Pass bytes on both ways until either end closes; then the connection is closed. Raises what the stream does.

    `sent` is awaited when the connection has ended and all that it gave was sent.
    """

    async def to_stream() -> None:
        await _to_stream(reader, send)
        if sent is not None:
            await sent()

    ways = [asyncio.create_task(to_stream()), asyncio.create_task(_from_stream(messages, writer))]
    try:
        await first_of(*ways)
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


async def first_of(*tasks: "asyncio.Task[None]") -> None:
    """Wait for the first that ends and cancel the others. Raises what that one did."""
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        next(each for each in tasks if each in done).result()
    finally:
        await end(*tasks)


async def _to_stream(reader: asyncio.StreamReader, send: Send) -> None:
    with suppress(OSError):  # the connection broke
        while data := await reader.read(PIECE_BYTES):
            await send(pb.CarriedBytes(data=data))


async def _from_stream(messages: AsyncIterator[pb.CarriedBytes], writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        async for message in messages:
            writer.write(message.data)
            await writer.drain()

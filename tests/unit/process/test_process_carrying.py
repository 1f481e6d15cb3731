"""A connection carried on a stream: what it gave last is sent before the stream may end."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from polyfleet.process.carrying import carry
from polyfleet.v1 import agents_pb2 as pb


class Writer:
    """Of a connection that takes everything."""

    def close(self) -> None:
        pass

    async def wait_closed(self) -> None:
        pass


async def test_the_other_end_is_heard_until_it_has_taken_what_was_sent_last() -> None:
    """To stop reading a call cancels it, which would overtake its last bytes."""
    reader, told, taken = asyncio.StreamReader(), list[str](), asyncio.Event()
    reader.feed_data(b"the last bytes")
    reader.feed_eof()

    async def messages() -> AsyncIterator[pb.CarriedBytes]:
        try:
            await taken.wait()  # then the other end ends the stream
            told.append("ended")
        except asyncio.CancelledError:
            told.append("cancelled")
            raise
        for each in tuple[pb.CarriedBytes, ...]():
            yield each

    async def send(message: pb.CarriedBytes) -> None:
        told.append(message.data.decode())

    async def sent() -> None:
        told.append("sent")
        taken.set()
        await asyncio.Event().wait()

    writer: Any = Writer()
    await carry(reader, writer, messages(), send, sent)
    assert told == ["the last bytes", "sent", "ended"]

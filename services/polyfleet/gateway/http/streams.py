"""Work on behalf of a client who may leave, and several streams of deltas as one."""

import asyncio
from collections.abc import AsyncGenerator, Collection, Coroutine, Sequence
from contextlib import aclosing
from dataclasses import fields
from typing import Any

from starlette.types import Receive

from polyfleet.process.tasks import end
from polyfleet.wire.answers import Delta, Usage


async def until_disconnect(receive: Receive, work: Coroutine[Any, Any, None]) -> None:
    """Run `work` to its end, or cancel it when the client leaves. Its body must have been read before."""
    task = asyncio.ensure_future(work)
    watcher = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait((task, watcher), return_when=asyncio.FIRST_COMPLETED)
    finally:
        await end(task, watcher)
    if not task.cancelled():
        task.result()


async def merge(
    streams: Sequence[AsyncGenerator[Delta, None]], n: int, *, continuous_usage: bool = False
) -> AsyncGenerator[Delta, None]:
    """The deltas of several requests with `n` choices each as those of one: choices numbered through, usage summed.

    `continuous_usage`: every delta tells usage so far, of the requests that have begun.

    The first error ends it; closing it closes every stream. At most one delta a stream waits for the reader.
    """
    deltas: asyncio.Queue[Delta | BaseException | None] = asyncio.Queue(maxsize=len(streams))
    usages: dict[int, Usage] = {}

    async def pump(index: int, stream: AsyncGenerator[Delta, None]) -> None:
        try:
            async with aclosing(stream):
                async for delta in stream:
                    if delta.usage:
                        usages[index] = delta.usage
                    so_far = _sum(usages.values()) if continuous_usage else None
                    await deltas.put(delta._replace(choice=index * n + delta.choice, usage=so_far))
            await deltas.put(None)
        except Exception as error:
            await deltas.put(error)

    pumps = [asyncio.ensure_future(pump(index, stream)) for index, stream in enumerate(streams)]
    try:
        running = len(streams)
        while running:
            item = await deltas.get()
            if isinstance(item, BaseException):
                raise item
            if item is None:
                running -= 1
            else:
                yield item
        yield Delta(choice=0, usage=_sum(usages.values()))
    finally:
        await end(*pumps)


def _sum(usages: Collection[Usage]) -> Usage:
    return Usage(*(sum(getattr(usage, each.name) for usage in usages) for each in fields(Usage)))


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass

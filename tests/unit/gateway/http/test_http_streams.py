"""Cancelling work when the client leaves; several streams as one."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import pytest

from polyfleet.gateway.http.streams import merge, until_disconnect
from polyfleet.wire.answers import Delta, FinishReason, Usage


async def never() -> dict[str, Any]:
    await asyncio.Event().wait()
    return {}


async def disconnect() -> dict[str, Any]:
    return {"type": "http.disconnect"}


async def test_work_runs_to_its_end() -> None:
    done = []

    async def work() -> None:
        await asyncio.sleep(0)
        done.append(True)

    await until_disconnect(never, work())
    assert done == [True]


async def test_leaving_client_cancels_the_work_and_waits_for_its_cleaning_up() -> None:
    steps = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            steps.append("cleaned up")

    await until_disconnect(disconnect, work())
    assert steps == ["cleaned up"]


async def test_error_of_the_work_is_raised() -> None:
    async def work() -> None:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        await until_disconnect(never, work())


async def test_outer_cancellation_reaches_the_work() -> None:
    cancelled = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    task = asyncio.create_task(until_disconnect(never, work()))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert cancelled == [True]


class Source:
    def __init__(self, *texts: str, error: Exception | None = None, forever: bool = False) -> None:
        self.texts, self.error, self.forever = texts, error, forever
        self.given = 0
        self.closed = False

    async def stream(self) -> AsyncGenerator[Delta, None]:
        try:
            for text in self.texts:
                self.given += 1
                yield Delta(0, text)
            if self.error:
                raise self.error
            while self.forever:
                self.given += 1
                yield Delta(0, "more")
            yield Delta(1, "end", finish_reason=FinishReason.STOP, usage=Usage(3, 1, 2, 1))
        finally:
            self.closed = True


async def test_merge_numbers_choices_through_and_sums_usage() -> None:
    sources = [Source("a", "b"), Source("x"), Source()]
    deltas = [delta async for delta in merge([source.stream() for source in sources], 2)]
    texts: dict[int, str] = {}
    for delta in deltas:
        texts[delta.choice] = texts.get(delta.choice, "") + delta.text
    assert texts == {0: "ab", 1: "end", 2: "x", 3: "end", 5: "end"}
    assert [delta.usage for delta in deltas if delta.usage] == [Usage(9, 3, 6, 3)]
    assert deltas[-1].usage is not None


async def test_merge_ends_with_the_first_error_and_closes_the_others() -> None:
    sources = [Source("a", error=ValueError("broken")), Source(forever=True)]
    with pytest.raises(ValueError, match="broken"):
        async for _ in merge([source.stream() for source in sources], 1):
            pass
    assert [source.closed for source in sources] == [True, True]


async def test_closing_merge_closes_every_stream() -> None:
    sources = [Source(forever=True), Source(forever=True)]
    async with aclosing(merge([source.stream() for source in sources], 1)) as deltas:
        await anext(deltas)
        for _ in range(100):
            await asyncio.sleep(0)
        assert max(source.given for source in sources) <= 4
    assert [source.closed for source in sources] == [True, True]

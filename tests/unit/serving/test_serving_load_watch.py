"""A load that stands still, and one that is only slow."""

import asyncio

import pytest

from polyfleet.serving.engine_client import LoadError
from polyfleet.serving.health.load_watch import LoadWatch
from polyfleet.serving.health.watchdog import WatchdogLimits

LIMITS = WatchdogLimits(replace_after=2, load_stall_timeout=0.04)


async def test_a_slow_load_that_gets_on_may_take_any_time() -> None:
    said: list[str] = []
    watch = LoadWatch(WatchdogLimits(replace_after=1, load_stall_timeout=0.4), said.append)

    async def load() -> str:
        for part in range(8):
            await asyncio.sleep(0.1)
            watch.got_on(part / 8, "reading the model")
        return "loaded"

    assert await watch.over(load()) == "loaded"
    assert said == []


async def test_a_standstill_is_said_once_and_taken_back_when_it_ends() -> None:
    said: list[str] = []
    watch = LoadWatch(WatchdogLimits(replace_after=1000, load_stall_timeout=0.04), said.append)

    async def load() -> str:
        watch.got_on(0.42, "reading the model")
        while not said:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        watch.got_on(0.43, "reading the model")
        return "loaded"

    assert await watch.over(load()) == "loaded"
    assert said == ["Loading has stood still for 0 s: at 42%, reading the model.", ""]


async def test_a_load_that_stands_still_is_given_up_and_ended() -> None:
    ended = asyncio.Event()

    async def load() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    with pytest.raises(LoadError, match=r"^Loading has stood still for 0 s: before it read anything\. It was given up"):
        await LoadWatch(LIMITS, lambda _: None).over(load())
    assert ended.is_set()


async def test_a_load_that_fails_says_why_itself() -> None:
    async def load() -> None:
        raise LoadError("no such file")

    with pytest.raises(LoadError, match=r"^no such file$"):
        await LoadWatch(LIMITS, lambda _: None).over(load())


async def test_who_is_cancelled_leaves_no_load_behind() -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def load() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    task = asyncio.create_task(LoadWatch(WatchdogLimits(), lambda _: None).over(load()))
    await begun.wait()
    task.cancel()
    await asyncio.wait({task})
    assert task.cancelled()
    assert ended.is_set()

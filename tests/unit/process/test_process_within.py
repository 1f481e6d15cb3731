"""Within: asyncio.wait_for's limit, in the task itself."""

import asyncio
import sys

import pytest

from polyfleet.process.within import Within


async def test_what_is_in_time_goes_on_and_is_not_cancelled_later() -> None:
    with Within(0.01):
        await asyncio.sleep(0)
    await asyncio.sleep(0.02)


@pytest.mark.parametrize("seconds", [0.001, 0.0, -1.0])
async def test_what_takes_longer_is_cancelled_and_times_out(seconds: float) -> None:
    cancelled = False

    async def work() -> None:
        nonlocal cancelled
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled = True
            raise

    with pytest.raises(asyncio.TimeoutError), Within(seconds):
        await work()
    assert cancelled
    await asyncio.sleep(0)  # the task itself is not cancelled


async def test_errors_of_its_inside_stay_what_they_are() -> None:
    async def work() -> None:
        await asyncio.sleep(0)
        raise ValueError("inside")

    with pytest.raises(ValueError, match="inside"), Within(1.0):
        await work()


async def test_who_cancels_the_task_is_heard() -> None:
    async def work() -> None:
        with Within(60.0):
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.skipif(sys.version_info < (3, 11), reason="before Python 3.11 a task does not count who cancels it")
async def test_who_cancels_the_task_just_when_its_time_is_over_is_heard() -> None:
    async def work() -> None:
        with Within(0.0):
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    asyncio.get_running_loop().call_soon(task.cancel)  # in the turn of the loop in which the timer fires
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_the_inner_of_two_limits_is_the_one_that_ends() -> None:
    with Within(60.0):
        with pytest.raises(asyncio.TimeoutError), Within(0.001):
            await asyncio.Event().wait()
        await asyncio.sleep(0)


async def test_who_cancels_the_task_just_when_its_inside_is_done_is_heard() -> None:
    """What asyncio.wait_for loses before Python 3.12, so that a loop around it never ends."""
    came = asyncio.Event()

    async def work() -> None:
        while True:
            with Within(60.0):
                await came.wait()
            came.clear()

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    came.set()
    task.cancel()
    await asyncio.wait((task,), timeout=60)
    assert task.cancelled()


async def test_a_limit_in_the_clean_up_of_a_cancelled_task_times_out() -> None:
    async def work() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            with pytest.raises(asyncio.TimeoutError), Within(0.001):
                await asyncio.Event().wait()
            return "cleaned up"
        return ""

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    task.cancel()
    assert await task == "cleaned up"


@pytest.mark.skipif(sys.version_info < (3, 11), reason="before Python 3.11 a task does not count who cancels it")
async def test_an_inside_that_keeps_its_cancellation_to_itself_leaves_none_counted() -> None:
    with Within(0.001), pytest.raises(asyncio.CancelledError):
        await asyncio.Event().wait()
    task = asyncio.current_task()
    assert task
    assert task.cancelling() == 0  # type: ignore[attr-defined,unused-ignore]


async def test_no_limit() -> None:
    with Within(None):
        await asyncio.sleep(0)

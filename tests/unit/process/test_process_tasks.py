"""Tasks that are ended, whatever they do with a cancellation."""

import asyncio
import gc

import pytest

from polyfleet.process import tasks
from polyfleet.serving.engine_client import EXIT_SECONDS, KILL_SECONDS


async def test_a_task_that_keeps_its_first_cancellations_to_itself_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "AGAIN_SECONDS", 0.01)
    kept = 0

    async def stubborn() -> None:
        nonlocal kept
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                kept += 1
                if kept > 2:
                    raise

    async def failing() -> None:
        raise RuntimeError

    some = [asyncio.create_task(each) for each in (stubborn(), failing())]
    await asyncio.sleep(0)
    await tasks.end(*some)
    assert kept == 3
    assert all(each.done() for each in some)


async def test_a_clean_up_is_not_broken_off() -> None:
    """Of a task that ends another one, which takes as long as an engine's process may have to end."""
    needed = EXIT_SECONDS + KILL_SECONDS
    assert needed < tasks.AGAIN_SECONDS
    cleaned = False

    async def inner() -> None:
        nonlocal cleaned
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(1.2)
            cleaned = True

    async def outer() -> None:
        task = asyncio.create_task(inner())
        try:
            await asyncio.Event().wait()
        finally:
            await tasks.end(task)

    running = asyncio.create_task(outer())
    await asyncio.sleep(0.01)
    await tasks.end(running)
    assert cleaned


async def test_one_in_the_background_that_fails_is_logged_at_once(caplog: pytest.LogCaptureFixture) -> None:
    async def failing() -> None:
        raise ValueError("a fault")

    some = tasks.Tasks()
    some.start(failing())
    await some.wait()
    await asyncio.sleep(0)
    (record,) = caplog.records
    assert record.message == "A background task failed."
    assert "failing" in record.task  # type: ignore[attr-defined]
    assert record.exc_info
    assert str(record.exc_info[1]) == "a fault"


async def test_a_job_that_is_kept_begins_again_when_it_fails(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tasks, "BEGIN_SECONDS", 0.0)
    begun = 0

    async def job() -> None:
        nonlocal begun
        begun += 1
        await asyncio.sleep(0)
        if begun < 3:
            raise ValueError(f"fault {begun}")
        if begun == 3:
            return
        pytest.fail("it had come to its end")

    some = tasks.Tasks()
    some.keep(job)
    await some.wait(60)
    assert begun == 3
    faults = [str(record.exc_info[1]) for record in caplog.records if record.exc_info]
    assert faults == ["fault 1", "fault 2"]


async def test_a_job_that_is_kept_can_be_ended_while_it_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    async def job() -> None:
        raise ValueError

    some = tasks.Tasks()
    kept = some.keep(job)
    await asyncio.sleep(0)
    await some.end()
    assert kept.cancelled()


async def test_tasks_are_held_until_they_end_and_ended_together() -> None:
    ended = list[str]()

    async def forever(name: str) -> None:
        try:
            await asyncio.get_running_loop().create_future()  # which nobody but the task holds
        finally:
            ended.append(name)

    some = tasks.Tasks()
    for name in ("a", "b"):
        some.start(forever(name))
    await some.wait(0.001)
    gc.collect()
    assert ended == []
    await some.end()
    assert sorted(ended) == ["a", "b"]


async def test_no_tasks_are_ended_at_once() -> None:
    await tasks.end()

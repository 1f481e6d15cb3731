"""Tasks that are ended, whatever they do with a cancellation."""

import asyncio

import pytest

from polyfleet.process import tasks


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


async def test_no_tasks_are_ended_at_once() -> None:
    await tasks.end()

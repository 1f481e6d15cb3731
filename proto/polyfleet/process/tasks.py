"""Tasks in the background: held, heard of when they fail, and ended."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

AGAIN_SECONDS = 15.0  # behind a cancellation, the next: more than any clean-up takes, which it would break off
BEGIN_SECONDS = 1.0  # behind a fault of a job that is kept
ResultT = TypeVar("ResultT")
log = logging.getLogger(__name__)


class Tasks:
    """An owner's tasks, which it holds until they have ended, since an event loop alone lets them go.

    One that fails is logged at once: nobody waits for its result.
    """

    def __init__(self) -> None:
        self._running: set[asyncio.Task[Any]] = set()

    def start(self, job: Coroutine[Any, Any, ResultT]) -> "asyncio.Task[ResultT]":
        """Run `job` beside what runs now."""
        task = asyncio.get_running_loop().create_task(job)
        self._running.add(task)
        task.add_done_callback(self._ended)
        return task

    def keep(self, job: Callable[[], Coroutine[Any, Any, None]]) -> "asyncio.Task[None]":
        """Run a job that goes on for as long as the owner does: one that fails is logged, and begins again soon."""
        return self.start(_kept(job))

    async def wait(self, seconds: float | None = None) -> None:
        """Until all have ended by themselves, or so many seconds."""
        if self._running:
            await asyncio.wait(self._running, timeout=seconds)

    def cancel(self) -> None:
        """Cancel all; `end` waits for it."""
        for task in self._running:
            task.cancel()

    async def end(self) -> None:
        """Cancel all until they have ended."""
        await end(*self._running)

    def _ended(self, task: "asyncio.Task[Any]") -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()):
            log.error("A background task failed.", exc_info=error, extra={"task": _name(task.get_coro())})


async def end(*tasks: "asyncio.Future[Any]") -> None:
    """Cancel tasks until they have ended; what they raise is let go.

    Once is not enough: a library's asyncio.wait_for keeps a cancellation to itself, before Python 3.12, when what it
    waits for comes at the same moment. `polyfleet.process.within.Within` does not.
    """
    pending = set(tasks)
    while pending:
        for task in pending:
            task.cancel()
        done, pending = await asyncio.wait(pending, timeout=AGAIN_SECONDS)
        for task in done:
            if not task.cancelled():
                task.exception()


async def _kept(job: Callable[[], Coroutine[Any, Any, None]]) -> None:
    while True:
        running = job()
        try:
            return await running
        except Exception:  # a fault of ours: without this job, something would never be done again
            log.exception("A background job failed and begins again.", extra={"task": _name(running)})
        await asyncio.sleep(BEGIN_SECONDS)


def _name(job: object) -> str:
    return getattr(job, "__qualname__", "")

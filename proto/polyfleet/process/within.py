"""A time limit for what the running task does."""

import asyncio
from types import TracebackType
from typing import Any


class Within:
    """`with Within(seconds):` raises asyncio.TimeoutError where its inside, which awaits, takes longer (None: never).

    The inside is cancelled then. Who cancels the task meanwhile is not overheard, as asyncio.wait_for does before
    Python 3.12, where what it waits for comes at the same moment; nor does it take a task of its own.
    """

    __slots__ = ("_before", "_expired", "_seconds", "_task", "_timer")

    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds

    def __enter__(self) -> None:
        self._expired = False
        self._timer: asyncio.TimerHandle | None = None
        if self._seconds is None:
            return
        task = asyncio.current_task()
        assert task is not None
        self._task, self._before = task, _counted(task, "cancelling")
        self._timer = asyncio.get_running_loop().call_later(max(0.0, self._seconds), self._expire)

    def _expire(self) -> None:
        self._expired = True
        self._task.cancel()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._expired and _counted(self._task, "uncancel") <= self._before and kind is asyncio.CancelledError:
            raise asyncio.TimeoutError from None


def _counted(task: "asyncio.Task[Any]", method: str) -> int:
    """How many have cancelled it, which tasks count since Python 3.11; none before."""
    count = getattr(task, method, None)
    return int(count()) if count else 0

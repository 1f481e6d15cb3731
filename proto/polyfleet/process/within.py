"""A time limit for what the running task does, without a task of its own as asyncio.wait_for has."""

import asyncio
from types import TracebackType


class Within:
    """`with Within(seconds):` raises asyncio.TimeoutError where its inside, which awaits, takes longer.

    The inside is cancelled then. Who cancels the task meanwhile is not overheard.
    """

    __slots__ = ("_expired", "_seconds", "_task", "_timer")

    def __init__(self, seconds: float) -> None:
        self._seconds = max(0.0, seconds)

    def __enter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task, self._expired = task, False
        self._timer = asyncio.get_running_loop().call_later(self._seconds, self._expire)

    def _expire(self) -> None:
        self._expired = True
        self._task.cancel()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._timer.cancel()
        if not self._expired:
            return
        uncancel = getattr(self._task, "uncancel", None)  # of Python 3.11: how many cancelled it beside this
        if kind is asyncio.CancelledError and not (uncancel and uncancel()):
            raise asyncio.TimeoutError from None

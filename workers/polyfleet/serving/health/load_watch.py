"""Whether a load gets on: however long it may take, it must not stand still."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from polyfleet.process.tasks import end
from polyfleet.serving.engine_client import LoadError
from polyfleet.serving.health.watchdog import WATCH_SECONDS, WatchdogLimits

ResultT = TypeVar("ResultT")


class LoadWatch:
    """Of one load. `tell` gets a sentence once it stands still, and an empty one when it goes on.

    Standing still is counted in looks, not by the clock: a worker that was stopped itself has missed what was said.
    """

    def __init__(self, limits: WatchdogLimits, tell: Callable[[str], None]) -> None:
        self._timeout, self._patience = limits.load_stall_timeout, limits.replace_after
        self._pause = min(WATCH_SECONDS, self._timeout / 4)
        self._tell = tell
        self._looks = 0  # since it got on
        self._at = "before it read anything"

    def got_on(self, share: float, phase: str) -> None:
        """The engine process has done something for it."""
        self._at = f"at {share:.0%}, {phase}"
        if self._looks * self._pause >= self._timeout:
            self._tell("")
        self._looks = 0

    async def over(self, loading: Coroutine[Any, Any, ResultT]) -> ResultT:
        """What `loading` returns. Raises LoadError when it stood still for too long, and cancels it."""
        task = asyncio.create_task(loading)
        try:
            while not (await asyncio.wait({task}, timeout=self._pause))[0]:
                self._looks += 1
                still = self._looks * self._pause
                if still - self._pause < self._timeout <= still:
                    self._tell(self._standstill(self._timeout))
                if still >= self._timeout * self._patience:
                    raise LoadError(f"{self._standstill(still)} It was given up.")
            return task.result()
        finally:
            await end(task)

    def _standstill(self, seconds: float) -> str:
        return f"Loading has stood still for {seconds:.0f} s: {self._at}."

"""A number that grows with each change, and a way to wait for the next one."""

import asyncio
import contextlib

from polyfleet.process.within import Within


class Revision:
    """Many tasks of one event loop may wait; each compares with the number it last saw, so none misses a change."""

    def __init__(self) -> None:
        self.number = 0
        self._changed = asyncio.Event()

    def advance(self) -> None:
        """Something changed."""
        self.number += 1
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def wait(self, seen: int, timeout: float | None = None) -> int:
        """The number, as soon as it is not `seen`, at the latest after `timeout` seconds (None: for ever)."""
        if self.number == seen:
            with contextlib.suppress(asyncio.TimeoutError), Within(timeout):
                await self._changed.wait()
        return self.number

"""A number that grows with each change, and a way to wait for the next one: state pushed to health and Fleet alike."""

import asyncio
import contextlib


class Changes:
    """Many tasks may wait; each compares with the version it last saw, so none misses a change."""

    def __init__(self) -> None:
        self.version = 0
        self._event = asyncio.Event()

    def notify(self) -> None:
        """Something changed."""
        self.version += 1
        self._event.set()
        self._event = asyncio.Event()

    async def wait(self, seen: int, timeout: float | None = None) -> int:
        """The version, as soon as it is beyond `seen`, at the latest after `timeout` seconds."""
        if self.version == seen:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._event.wait(), timeout)
        return self.version

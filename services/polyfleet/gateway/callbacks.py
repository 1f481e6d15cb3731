"""A list of callbacks: how one part of the gateway tells others that something changed."""

import asyncio
from collections.abc import Callable


class Listeners:
    """Called in the order they were added. They must neither block nor raise."""

    def __init__(self) -> None:
        self._callbacks: list[Callable[[], None]] = []
        self._waiting: list[asyncio.Future[None]] = []

    def add(self, callback: Callable[[], None]) -> None:
        """Call `callback` at every change from now on."""
        self._callbacks.append(callback)

    def call(self) -> None:
        """Something changed."""
        for callback in self._callbacks:
            callback()
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    async def wait(self) -> None:
        """Until the next change."""
        future = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        await future

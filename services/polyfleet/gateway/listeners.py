"""A list of callbacks: how one part of the gateway tells others that something changed."""

from collections.abc import Callable

from polyfleet.process.revision import Revision


class Listeners:
    """Called in the order they were added. They must neither block nor raise."""

    def __init__(self) -> None:
        self._callbacks: list[Callable[[], None]] = []
        self._revision = Revision()

    def add(self, callback: Callable[[], None]) -> None:
        """Call `callback` at every change from now on."""
        self._callbacks.append(callback)

    def call(self) -> None:
        """Something changed."""
        for callback in self._callbacks:
            callback()
        self._revision.advance()

    async def wait(self) -> None:
        """Until the next change."""
        await self._revision.wait(self._revision.number)

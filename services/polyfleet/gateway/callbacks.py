"""A list of callbacks: how one part of the gateway tells others that something changed."""

from collections.abc import Callable


class Listeners:
    """Called in the order they were added. They must neither block nor raise."""

    def __init__(self) -> None:
        self._callbacks: list[Callable[[], None]] = []

    def add(self, callback: Callable[[], None]) -> None:
        """Call `callback` at every change from now on."""
        self._callbacks.append(callback)

    def call(self) -> None:
        """Something changed."""
        for callback in self._callbacks:
            callback()

"""Calls that come together begin one after another, so that each goes on before the last of them has begun."""

import asyncio
from collections import deque
from collections.abc import Callable

TURNS = 3  # of the event loop: a worker's news are read, taken by their streams, and sent


class Begins:
    """Of one port. A call begins in the next turn of the event loop, or TURNS behind the one before it.

    So what a call's begin has to say to its worker, and what others have to say to their callers, waits for one more
    begin at most.
    """

    def __init__(self) -> None:
        self._waiting = deque[Callable[[], object]]()

    def add(self, begin: Callable[[], object]) -> None:
        """One more, behind those that wait."""
        self._waiting.append(begin)
        if len(self._waiting) == 1:
            self._after(1)

    def rush(self) -> None:
        """All begin now."""
        while self._waiting:
            self._waiting.popleft()()

    def _after(self, turns: int) -> None:
        asyncio.get_running_loop().call_soon(self._turn, turns - 1)

    def _turn(self, more: int) -> None:
        if more:
            self._after(more)
        elif self._waiting:
            begin = self._waiting.popleft()
            if self._waiting:
                self._after(TURNS)
            begin()

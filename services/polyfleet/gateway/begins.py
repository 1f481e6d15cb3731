"""In which order the event loop does what it could do at once: calls that come together begin one after another.

Each goes on before the last of them has begun, and what nobody waits for comes behind them all.
"""

import asyncio
from collections import deque
from collections.abc import Callable

TURNS = 3  # of the event loop: a worker's news are read, taken by their streams, and sent
MAX_BEHIND = 1024  # pieces of work: then they wait for no call any more
Work = Callable[[], object]


class Begins:
    """Of one event loop. A call begins in the next turn, or TURNS behind the one before it.

    So what a call's begin has to say to its worker, and what others have to say to their callers, waits for one more
    begin at most.
    """

    def __init__(self) -> None:
        self._calls, self._behind = deque[Work](), deque[Work]()
        self._scheduled = False

    def add(self, begin: Work) -> None:
        """A call more, behind those that wait."""
        self._calls.append(begin)
        self._schedule()

    def behind(self, work: Work) -> None:
        """Do this in a turn of its own in which no call waits to begin, as what comes of a request that has ended."""
        self._behind.append(work)
        self._schedule()

    def rush(self) -> None:
        """Do all now, as the event loop is about to end."""
        for waiting in (self._calls, self._behind):
            while waiting:
                waiting.popleft()()

    def _schedule(self, turns: int = 1) -> None:
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._turn, turns - 1)

    def _turn(self, more: int) -> None:
        self._scheduled = False
        if more:
            self._schedule(more)
            return
        work = list[Work]()
        if self._calls:
            work.append(self._calls.popleft())
        if self._behind and (not work or len(self._behind) > MAX_BEHIND):
            work.append(self._behind.popleft())
        if self._calls or self._behind:
            self._schedule(TURNS if self._calls else 1)
        for each in work:
            each()

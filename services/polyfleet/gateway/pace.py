"""Long pieces of work on the event loop leave most of it to others.

The loop can't be left in the midst of a piece, so pieces are short, and behind each comes a rest in proportion to it:
whoever sends what takes long to read waits, and nobody else does.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

PIECE = 64  # items
REST = 2.0  # seconds for each second of work: paced work has a third of the loop
Done = TypeVar("Done")
Item = TypeVar("Item")


async def in_pieces(work: Callable[[Item], Done], items: Sequence[Item]) -> list[Done]:
    """What `work` makes of each; others have a turn of the event loop between so many of them."""
    done: list[Done] = []
    for first in range(0, len(items), PIECE):
        if first:
            await asyncio.sleep(0)
        done += map(work, items[first : first + PIECE])
    return done


class Pace:
    """One queue for work of one kind, whoever it is for. `clock` gives seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._rested = 0.0  # when all that was done is rested from
        self._turn = asyncio.Lock()

    def spend(self, seconds: float) -> float:
        """So much was worked just now: how many seconds from now its owner may go on."""
        now = self._clock()
        self._rested = max(self._rested, now) + REST * seconds
        return self._rested - now

    async def run(self, work: Callable[[], Done]) -> Done:
        """Do `work` when its turn has come, one piece at a time."""
        async with self._turn:
            await asyncio.sleep(max(0.0, self._rested - self._clock()))
            begin = time.thread_time()
            try:
                return work()
            finally:
                self.spend(time.thread_time() - begin)

"""A circuit breaker: a worker that refuses or loses everything it gets is spared requests, and tried now and then.

Placement keeps requests from it as long as another worker could take them.

closed ──FAILURES in a row──▶ open ──pause over──▶ one sequence tries each second ──any news──▶ closed
                                ▲                                  │
                                └───refused or lost, longer pause──┘
"""

import time
from collections.abc import Callable

FAILURES = 3  # in a row, of whatever sequences
PAUSE_SECONDS = (1.0, 30.0)  # first and longest
TRIAL_SECONDS = 1.0  # refusals come at once; news of a long prompt may take its time


class CircuitBreaker:
    """Of one worker, as one gateway sees it. `clock` gives seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failures = 0
        self._trying = False
        self._pause = PAUSE_SECONDS[0]
        self._until = 0.0

    @property
    def open(self) -> bool:
        """Whether it has failed too often since its last news."""
        return self._failures >= FAILURES

    @property
    def seconds(self) -> float:
        """Until it may get a sequence; 0: now."""
        return max(0.0, self._until - self._clock()) if self.open else 0.0

    def started(self) -> None:
        """It got a sequence."""
        if self.open:
            self._trying = True
            self._until = self._clock() + TRIAL_SECONDS

    def worked(self) -> None:
        """There is news of a sequence there, or it was the sequence's own fault."""
        self._failures, self._trying, self._pause = 0, False, PAUSE_SECONDS[0]

    def failed(self) -> None:
        """It refused a sequence, or lost its session with sequences on it."""
        if self.open and not self._trying:
            return  # that one came before the breaker opened
        self._failures += 1
        self._trying = False
        if self.open:
            self._until = self._clock() + self._pause
            self._pause = min(2 * self._pause, PAUSE_SECONDS[1])

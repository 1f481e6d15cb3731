"""When a call is tried again: UNAVAILABLE before the first message, a bounded number of times, within the deadline."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from polyfleet.client.errors import PolyfleetError, UnavailableError


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """At most `attempts` tries. Between two, the gateway's hint is kept, else the delay doubles from `initial_delay`.

    Seconds. A hint over `max_delay` is not waited for: the error is raised and carries it as `retry_after`.
    """

    attempts: int = 4
    initial_delay: float = 0.2
    max_delay: float = 5.0

    def delay(self, error: PolyfleetError, attempt: int) -> float | None:
        """Seconds to wait after `attempt` (from 1) failed with `error`; None: don't try again."""
        if attempt >= self.attempts or not isinstance(error, UnavailableError):
            return None
        if error.retry_after is not None:
            return error.retry_after if error.retry_after <= self.max_delay else None
        longest: float = min(self.initial_delay * 2 ** (attempt - 1), self.max_delay)
        return random.uniform(longest / 2, longest)


DEFAULT_RETRIES = RetryPolicy()
NO_RETRIES = RetryPolicy(attempts=1)


class Attempts:
    """The tries of one call: counts them and keeps them within one deadline, `timeout` seconds away (None: never)."""

    def __init__(self, policy: RetryPolicy, timeout: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._policy = policy
        self._clock = clock
        self._deadline = None if timeout is None else clock() + timeout
        self._made = 0

    def begin(self) -> float | None:
        """Count one try; gives the seconds it may take."""
        self._made += 1
        return None if self._deadline is None else max(0.0, self._deadline - self._clock())

    def wait_after(self, error: PolyfleetError) -> float:
        """Seconds to sleep before the next try; raises `error` when there is none, or no time for one."""
        delay = self._policy.delay(error, self._made)
        if delay is None or (self._deadline is not None and self._clock() + delay >= self._deadline):
            raise error
        return delay

"""The best that an engine was seen to do: what its present rate is compared with."""

from dataclasses import dataclass

WINDOW_SECONDS = 1.0


@dataclass(slots=True)
class PeakRate:
    """The highest rate of a count that only grows, over windows of at least a second. Give it every new value.

    The clock is the engine's time in steps: a window with idle time in it would say too little.
    """

    per_second: float = 0.0
    _count: int | None = None
    _since: float = 0.0

    def see(self, count: int, now: float) -> None:
        """The count at `now` seconds of the clock."""
        if self._count is None:
            self._count, self._since = count, now
        elif now - self._since >= WINDOW_SECONDS:
            self.per_second = max(self.per_second, (count - self._count) / (now - self._since))
            self._count, self._since = count, now

"""Exponential back-off of restarts. Pure: it knows neither clock nor sleep."""

from dataclasses import dataclass


@dataclass(slots=True)
class Backoff:
    """Delays of `first`, then twice as long each time up to `limit` seconds; from the start after a stable run."""

    first: float = 0.5
    limit: float = 30.0
    stable: float = 60.0  # a run this long (seconds) proves that the trouble is over
    failures: int = 0  # in a row

    def delay_after(self, ran_seconds: float) -> float:
        """Seconds to wait before the next start of something that just failed after `ran_seconds`."""
        self.failures = 1 if ran_seconds >= self.stable else self.failures + 1
        return float(min(self.limit, self.first * 2.0 ** min(self.failures - 1, 62)))

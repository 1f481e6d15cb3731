"""Histograms of the engine: of its steps' time and rows, and of the time that sequences wait for their first step."""

from bisect import bisect_left
from collections.abc import Iterable, Sequence

from prometheus_client.core import HistogramMetricFamily

from polyfleet.engine.facts import EngineStatus
from polyfleet.wire.answers import SequenceUpdate

STEP_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
QUEUE_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
STEP_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
QUEUE_TEXT = "From a sequence's arrival at the engine to its first step."


class Histogram:
    """Counts of values up to each bound, and of those over all."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def add(self, value: float, count: int = 1) -> None:
        """Count a value so many times."""
        self._counts[bisect_left(self._bounds, value)] += count
        self._sum += value * count

    def family(self, name: str, text: str, labels: tuple[str, ...], values: tuple[str, ...]) -> HistogramMetricFamily:
        """As it is scraped."""
        buckets, total = [], 0
        for bound, count in zip((*self._bounds, None), self._counts, strict=True):
            total += count
            buckets.append(("+Inf" if bound is None else f"{float(bound)}", float(total)))
        family = HistogramMetricFamily(name, text, labels=labels)
        family.add_metric(values, buckets, self._sum)
        return family


class EngineHistograms:
    """Learns each step from the totals that the engine reports behind it, each wait from a sequence's first news."""

    def __init__(self) -> None:
        self.seconds, self.rows, self.queue = Histogram(STEP_SECONDS), Histogram(STEP_ROWS), Histogram(QUEUE_SECONDS)
        self._steps, self._step_seconds, self._step_rows = 0, 0.0, 0

    def see(self, status: EngineStatus, updates: Iterable[SequenceUpdate] = ()) -> None:
        """The totals now; steps that were not reported one by one count with their mean."""
        for update in updates:
            if update.queue_seconds is not None:
                self.queue.add(update.queue_seconds)
        count = status.steps - self._steps
        if count > 0:
            self.seconds.add((status.step_seconds - self._step_seconds) / count, count)
            self.rows.add((status.step_rows - self._step_rows) / count, count)
        self._steps, self._step_seconds, self._step_rows = status.steps, status.step_seconds, status.step_rows

    def families(self, labels: tuple[str, ...], values: tuple[str, ...]) -> list[HistogramMetricFamily]:
        """All, as they are scraped."""
        return [
            self.seconds.family("polyfleet_engine_step_duration_seconds", "Time of a step.", labels, values),
            self.rows.family("polyfleet_engine_step_rows", "Rows (tokens computed) of a step.", labels, values),
            self.queue.family("polyfleet_engine_queue_seconds", QUEUE_TEXT, labels, values),
        ]

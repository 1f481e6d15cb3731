"""What the scheduler wants to know of this gateway's requests: of models, what they want; of revisions, how they fare.

Totals count from the gateway's start. Lives in one event loop.
"""

import asyncio
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable

from prometheus_client import CollectorRegistry
from prometheus_client import Counter as Series

from polyfleet.placement.fleet import Revision
from polyfleet.v1 import fleet_pb2 as pb

RECENT_SECONDS = 30.0
MAX_WAITS = 512  # of a model's that are looked at
QUANTILE = 0.9


class ModelDemand:
    """One model's requests. `clock` gives seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.requests = self.queued = self.inflight = 0
        self._clock = clock
        self._waits: deque[tuple[float, float]] = deque(maxlen=MAX_WAITS)  # when they ended, and how long they were
        self._still = 0.0  # since when nobody has left the queue

    def enter(self) -> None:
        """A request begins to wait."""
        if not self.queued:
            self._still = self._clock()
        self.queued += 1

    def leave(self) -> None:
        """One waits no more."""
        self.queued -= 1
        self._still = self._clock()

    def waited(self, seconds: float) -> None:
        """A request had its first news behind a wait of so long, at its worker or before."""
        self._waits.append((self._clock(), seconds))

    @property
    def queue_seconds(self) -> float:
        """The 0.9 quantile of the last half minute's waits, or how long nobody has left the queue, if that is more."""
        now = self._clock()
        waits = sorted(wait for ended, wait in self._waits if now - ended <= RECENT_SECONDS)
        usual = waits[int(QUANTILE * (len(waits) - 1))] if waits else 0.0
        return max(usual, now - self._still if self.queued else 0.0)


class Demand:
    """All models and revisions. `urgent` is set when a request begins to wait for a model for which none did."""

    def __init__(self, registry: CollectorRegistry, clock: Callable[[], float] = time.monotonic) -> None:
        self.urgent = asyncio.Event()
        self._clock = clock
        self._models: dict[str, ModelDemand] = {}
        self._ended = defaultdict[Revision, Counter[str]](Counter)
        self._series = Series(
            "polyfleet_revision_sequences_total",
            "Sequences that workers of a revision ended, well or by no fault of their callers.",
            ("deployment", "revision", "result"),
            registry=registry,
        )

    def of(self, model: str) -> ModelDemand:
        """One model's."""
        if model not in self._models:
            self._models[model] = ModelDemand(self._clock)
        return self._models[model]

    def enter(self, model: str) -> None:
        """A request begins to wait for a worker, or for its model to be known."""
        demand = self.of(model)
        demand.enter()
        if demand.queued == 1:
            self.urgent.set()

    def ended(self, revision: Revision | None, *, well: bool) -> None:
        """A worker of this revision has done with a sequence."""
        if revision is None:
            return
        result = "ok" if well else "error"
        self._ended[revision][result] += 1
        self._series.labels(revision.deployment, str(revision.number), result).inc()

    def keep(self, revisions: set[Revision]) -> None:
        """Forget all other revisions: they have no worker any more."""
        for revision in self._ended.keys() - revisions:
            for result in self._ended.pop(revision):
                self._series.remove(revision.deployment, str(revision.number), result)

    def models(self) -> list[pb.ModelDemand]:
        """What each model that was ever asked for wants now."""
        return [
            pb.ModelDemand(
                model=model,
                queued=each.queued,
                running=max(0, each.inflight - each.queued),
                requests=each.requests,
                queue_seconds=each.queue_seconds,
            )
            for model, each in self._models.items()
            if model
        ]

    def revisions(self) -> list[pb.RevisionTotals]:
        """How the sequences of each have fared."""
        return [
            pb.RevisionTotals(deployment=deployment, revision=number, sequences=counts.total(), errors=counts["error"])
            for (deployment, number), counts in self._ended.items()
        ]

"""The gateway's metrics, in a registry of their own; names and labels as docs/architecture.md lists them."""

from collections.abc import Callable, Container
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from polyfleet.gateway.ledger import Ledger

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.025, 0.05, 0.1, 0.25, 0.5, 1)
PLACEMENT_SECONDS = (0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.005, 0.01, 0.1)
LEDGER_STATES = ("admitted", "finished", "failed", "cancelled", "running")


class Metrics:
    """Counters and histograms that the gateway feeds, gauges that read their source when scraped.

    The label `model` holds names of models of the fleet only, empty for others, so that callers can't make series.
    """

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        model = ("model",)
        self.requests = Counter(
            "polyfleet_requests_total", "Requests by end.", ("model", "method", "code"), registry=registry
        )
        self.inflight = Gauge(
            "polyfleet_requests_inflight", "Requests admitted and not ended.", model, registry=registry
        )
        self.queued = Gauge("polyfleet_requests_queued", "Requests that wait for a worker.", model, registry=registry)
        self.queue_time = _histogram(registry, "polyfleet_queue_time_seconds", "Arrival to first step.", SECONDS)
        self.first_token = _histogram(
            registry, "polyfleet_time_to_first_token_seconds", "Arrival to first token.", SECONDS
        )
        self.per_token = _histogram(
            registry, "polyfleet_time_per_output_token_seconds", "Mean time between tokens.", TOKEN_SECONDS
        )
        self.duration = _histogram(registry, "polyfleet_request_duration_seconds", "Arrival to end.", SECONDS)
        self.prompt_tokens = Counter("polyfleet_prompt_tokens_total", "Prompt tokens.", model, registry=registry)
        self.generation_tokens = Counter(
            "polyfleet_generation_tokens_total", "Generated tokens.", model, registry=registry
        )
        self.cached_tokens = Counter(
            "polyfleet_cached_prompt_tokens_total", "Prompt tokens read from KV caches.", model, registry=registry
        )
        self.placements = Counter(
            "polyfleet_placements_total", "Sequences placed, by reason.", ("worker_id", "reason"), registry=registry
        )
        self.placement_time = Histogram(
            "polyfleet_placement_seconds", "Time to choose a worker.", buckets=PLACEMENT_SECONDS, registry=registry
        )
        self.migrations = Counter(
            "polyfleet_migrations_total", "Sequences moved off a lost worker.", ("result",), registry=registry
        )
        self.cancellations = Counter(
            "polyfleet_cancellations_total", "Requests whose client left.", model, registry=registry
        )
        self._placed: set[tuple[str, str]] = set()
        self._ledger = Gauge("polyfleet_ledger_requests", "The ledger.", ("state",), registry=registry)
        self._sessions = Gauge("polyfleet_sessions", "Sessions with workers.", ("state",), registry=registry)

    def watch_ledger(self, ledger: Ledger) -> None:
        """Show `ledger` in `polyfleet_ledger_requests`."""
        for state in LEDGER_STATES:
            self._ledger.labels(state).set_function(partial(getattr, ledger, state))

    def watch_sessions(self, state: str, count: Callable[[], int]) -> None:
        """Show `count` as the number of sessions in `state`."""
        self._sessions.labels(state).set_function(lambda: float(count()))

    def keep_workers(self, worker_ids: Container[str]) -> None:
        """Drop the series of workers that have left the fleet."""
        for worker_id, reason in list(self._placed):
            if worker_id not in worker_ids:
                self._placed.discard((worker_id, reason))
                self.placements.remove(worker_id, reason)

    def placed(self, worker_id: str, reason: str) -> None:
        """A sequence was placed: `start`, or `resume` when it goes on behind tokens of another worker."""
        self._placed.add((worker_id, reason))
        self.placements.labels(worker_id, reason).inc()


def _histogram(registry: CollectorRegistry, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
    return Histogram(name, text, ("model",), buckets=buckets, registry=registry)

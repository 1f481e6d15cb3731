"""The gateway's metrics, in a registry of their own; names and labels as docs/architecture.md lists them."""

from collections.abc import Callable, Collection
from enum import Enum, unique
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from polyfleet.gateway.config import Objectives
from polyfleet.gateway.demand import Demand
from polyfleet.gateway.ledger import Ledger
from polyfleet.gateway.ports.certificate import ServedCertificate
from polyfleet.placement.apart import Decision
from polyfleet.process.metrics import ProcessMetrics

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.025, 0.05, 0.1, 0.25, 0.5, 1)
PLACEMENT_SECONDS = (0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.005, 0.01, 0.1)
PROTOCOLS = ("http", "grpc", "metrics")
LEDGER_STATES = ("admitted", "finished", "failed", "cancelled", "running")


@unique
class Judgement(str, Enum):
    """What the objectives say of a request that was neither wrong nor ended by its caller."""

    GOOD = "good"
    SLOW = "slow"
    FAILED = "failed"


class ModelMetrics:
    """What is counted per model; made once per model, since looking labels up costs more than counting."""

    def __init__(self, families: "_Families", model: str) -> None:
        self.inflight: Gauge = families.inflight.labels(model)
        self.queued: Gauge = families.queued.labels(model)
        self.queue_time: Histogram = families.queue_time.labels(model)
        self.tokenize: Histogram = families.tokenize.labels(model)
        self.first_token: Histogram = families.first_token.labels(model)
        self.per_token: Histogram = families.per_token.labels(model)
        self.duration: Histogram = families.duration.labels(model)
        self.prompt_tokens: Counter = families.prompt_tokens.labels(model)
        self.generation_tokens: Counter = families.generation_tokens.labels(model)
        self.cached_tokens: Counter = families.cached_tokens.labels(model)
        self.cancellations: Counter = families.cancellations.labels(model)
        self.judged: dict[Judgement, Counter] = {each: families.judged.labels(model, each.value) for each in Judgement}


class _Families:
    def __init__(self, registry: CollectorRegistry) -> None:
        def gauge(name: str, text: str) -> Gauge:
            return Gauge(name, text, ("model",), registry=registry)

        def counter(name: str, text: str) -> Counter:
            return Counter(name, text, ("model",), registry=registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...] = SECONDS) -> Histogram:
            return Histogram(name, text, ("model",), buckets=buckets, registry=registry)

        self.inflight = gauge("polyfleet_requests_inflight", "Requests admitted and not ended.")
        self.queued = gauge("polyfleet_requests_queued", "Requests that wait for a worker.")
        self.queue_time = histogram("polyfleet_queue_time_seconds", "Arrival to first step.")
        self.tokenize = histogram("polyfleet_tokenize_seconds", "A prompt's text or chat to ids.", SECONDS)
        self.first_token = histogram(
            "polyfleet_time_to_first_token_seconds", "From a request to its first token, as it arrives at the gateway."
        )
        self.per_token = histogram(
            "polyfleet_time_per_output_token_seconds", "Mean time between the tokens of a choice.", TOKEN_SECONDS
        )
        self.duration = histogram("polyfleet_request_duration_seconds", "Arrival to end.")
        self.prompt_tokens = counter("polyfleet_prompt_tokens_total", "Prompt tokens.")
        self.generation_tokens = counter("polyfleet_generation_tokens_total", "Generated tokens.")
        self.cached_tokens = counter("polyfleet_cached_prompt_tokens_total", "Prompt tokens read from KV caches.")
        self.cancellations = counter("polyfleet_cancellations_total", "Requests whose client left.")
        self.judged = Counter(
            "polyfleet_slo_requests_total", "Requests judged by the objectives.", ("model", "result"), registry=registry
        )


class WorkerMetrics:
    """What is counted per worker, as its session sees it; the series are there before anything has happened."""

    def __init__(self, families: "_WorkerFamilies", worker_id: str) -> None:
        self.reconnects: Counter = families.reconnects.labels(worker_id)
        self.failures: Counter = families.failures.labels(worker_id)
        self.circuit_open: Gauge = families.circuit_open.labels(worker_id)


class _WorkerFamilies:
    def __init__(self, registry: CollectorRegistry) -> None:
        labels = ("worker_id",)
        self.reconnects = Counter(
            "polyfleet_session_reconnects", "Sessions made anew with a worker that had one.", labels, registry=registry
        )
        self.failures = Counter(
            "polyfleet_worker_failures", "Sequences a worker refused, sessions it lost.", labels, registry=registry
        )
        self.circuit_open = Gauge(
            "polyfleet_circuit_open", "1 while a worker is spared for its failures.", labels, registry=registry
        )

    def remove(self, worker_id: str) -> None:
        for family in (self.reconnects, self.failures, self.circuit_open):
            family.remove(worker_id)


class KeyMetrics:
    """Usage by the id of the caller's key, of which there are as many as the keys file has; empty without keys."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, *more: str) -> Counter:
            return Counter(name, text, ("key_id", *more), registry=registry)

        self._requests = counter("polyfleet_key_requests_total", "Requests by key and end.", "code")
        self._prompt = counter("polyfleet_key_prompt_tokens_total", "Prompt tokens by key.")
        self._generation = counter("polyfleet_key_generation_tokens_total", "Generated tokens by key.")

    def count(self, key_id: str, code: str, prompt_tokens: int, generation_tokens: int) -> None:
        """One request ended."""
        self._requests.labels(key_id, code).inc()
        self._prompt.labels(key_id).inc(prompt_tokens)
        self._generation.labels(key_id).inc(generation_tokens)


def _prefills(registry: CollectorRegistry) -> Counter:
    text = "Prompts placed where workers compute prompts for others: apart, or why together."
    found = Counter("polyfleet_prefills_total", text, ("decision",), registry=registry)
    for decision in Decision:  # so that rates begin with the first of each
        found.labels(decision.value)
    return found


class Metrics:
    """Counters and histograms that the gateway feeds, gauges that read their source when scraped.

    The label `model` holds names of models of the fleet only, empty for others, so that callers can't make series.
    """

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self._families = _Families(registry)
        self._models: dict[str, ModelMetrics] = {}
        self._worker_families = _WorkerFamilies(registry)
        self._workers: dict[str, WorkerMetrics] = {}
        self.process = ProcessMetrics(registry)
        self.requests = Counter(
            "polyfleet_requests_total", "Requests by end.", ("model", "method", "code"), registry=registry
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
        self.prefills = _prefills(registry)
        self.image_fetches = Histogram(
            "polyfleet_image_fetch_seconds", "Images by their URLs.", ("result",), buckets=SECONDS, registry=registry
        )
        self.keys, self.demand = KeyMetrics(registry), Demand(registry)
        self._refused = Counter(
            "polyfleet_connections_refused_total",
            "Connections that the gateway ended or did not take, by why.",
            ("protocol", "reason"),
            registry=registry,
        )
        for protocol in PROTOCOLS:  # a rate needs its series to be there before the first of them is counted
            self._refused.labels(protocol, "full")
        self._connections = Gauge("polyfleet_connections", "Open now.", ("protocol",), registry=registry)
        self._placed: set[tuple[str, str]] = set()
        self._ledger = Gauge("polyfleet_ledger_requests", "The ledger.", ("state",), registry=registry)
        self._sessions = Gauge("polyfleet_sessions", "Sessions with workers.", ("state",), registry=registry)
        self._connected = Gauge("polyfleet_scheduler_connected", "1 while snapshots come from it.", registry=registry)
        self._objectives = Gauge(
            "polyfleet_slo_objective_seconds", "What a good answer keeps.", ("objective",), registry=registry
        )

    def of(self, model: str) -> ModelMetrics:
        """The metrics of one model."""
        found = self._models.get(model)
        if found is None:
            found = self._models[model] = ModelMetrics(self._families, model)
        return found

    def of_worker(self, worker_id: str) -> WorkerMetrics:
        """The metrics of one worker's session."""
        if worker_id not in self._workers:
            self._workers[worker_id] = WorkerMetrics(self._worker_families, worker_id)
        return self._workers[worker_id]

    def watch_ledger(self, ledger: Ledger) -> None:
        """Show `ledger` in `polyfleet_ledger_requests`."""
        for state in LEDGER_STATES:
            self._ledger.labels(state).set_function(partial(getattr, ledger, state))

    def watch_scheduler(self, connected: Callable[[], bool]) -> None:
        """Show whether snapshots come."""
        self._connected.set_function(lambda: float(connected()))

    def show_objectives(self, objectives: Objectives) -> None:
        """Show what requests are judged by."""
        self._objectives.labels("time_to_first_token").set(objectives.time_to_first_token)
        self._objectives.labels("time_per_output_token").set(objectives.time_per_output_token)

    def watch_certificate(self, certificate: ServedCertificate) -> None:
        """Show when the certificate that is served expires, in seconds since 1970."""
        name, text = "polyfleet_tls_certificate_expiry_timestamp_seconds", "When the certificate served expires."
        Gauge(name, text, registry=self.registry).set_function(lambda: certificate.expiry)

    def watch_connections(self, protocol: str, count: Callable[[], int]) -> None:
        """Show `count` as the number of connections over `protocol`."""
        self._connections.labels(protocol).set_function(lambda: float(count()))

    def refused(self, protocol: str, reason: str) -> None:
        """A connection over `protocol` was not taken, or ended for this reason."""
        self._refused.labels(protocol, reason).inc()

    def watch_sessions(self, state: str, count: Callable[[], int]) -> None:
        """Show `count` as the number of sessions in `state`."""
        self._sessions.labels(state).set_function(lambda: float(count()))

    def placed(self, worker_id: str, reason: str) -> None:
        """A sequence was placed: `start`, or `resume` when it goes on behind tokens that it has already."""
        self._placed.add((worker_id, reason))
        self.placements.labels(worker_id, reason).inc()

    def keep_workers(self, worker_ids: Collection[str]) -> None:
        """Drop the series of workers that have left the fleet."""
        for worker_id in self._workers.keys() - set(worker_ids):
            del self._workers[worker_id]
            self._worker_families.remove(worker_id)
        for worker_id, reason in list(self._placed):
            if worker_id not in worker_ids:
                self._placed.discard((worker_id, reason))
                self.placements.remove(worker_id, reason)

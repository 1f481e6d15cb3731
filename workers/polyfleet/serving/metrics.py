"""The worker's /metrics: read off its last status at each scrape, so there is nothing to keep in step.

Series carry the model that is loaded now; those of an unloaded one are gone with the next scrape.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest
from typing import Any

from prometheus_client import ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from polyfleet.engine.canary.canary import CanaryResult
from polyfleet.engine.facts import EngineStatus
from polyfleet.kvcache.travelling import DISK_PROBLEMS, FAILURES
from polyfleet.process.listening import ListenError, parse_address
from polyfleet.process.metrics import MetricsServer
from polyfleet.serving.device_metrics import device_families
from polyfleet.serving.health.device_watch import DeviceWatch
from polyfleet.serving.worker import Worker
from polyfleet.v1 import fleet_pb2 as fleet

METRICS_LISTEN = "--metrics-listen"
LABELS = ("model", "accelerator")
Reading = Callable[[EngineStatus, int], float]  # of the engine's status and the pool's size in blocks

GAUGES: tuple[tuple[str, str, Reading], ...] = (
    ("polyfleet_sequences_running", "Sequences in the batch.", lambda s, _: s.running_sequences),
    ("polyfleet_sequences_waiting", "Sequences admitted, not in the batch.", lambda s, _: s.waiting_sequences),
    ("polyfleet_kv_blocks_used", "KV blocks that running sequences hold.", lambda s, n: n - s.free_blocks),
    ("polyfleet_kv_blocks_free", "KV blocks free or evictable.", lambda s, _: s.free_blocks),
    ("polyfleet_kv_host_blocks", "Evicted KV blocks kept in host memory.", lambda s, _: s.host_blocks),
    ("polyfleet_kv_disk_blocks", "Evicted KV blocks kept on local disk.", lambda s, _: s.disk_blocks),
    (
        "polyfleet_kv_cache_usage_ratio",
        "Used share of the KV blocks.",
        lambda s, n: (n - s.free_blocks) / n if n else 0,
    ),
)
COUNTERS: tuple[tuple[str, str, Reading], ...] = (
    ("polyfleet_prefix_cache_queries", "Prompt tokens looked up.", lambda s, _: s.prefix_queries_tokens),
    ("polyfleet_prefix_cache_hits", "Prompt tokens found in the prefix cache.", lambda s, _: s.prefix_hit_tokens),
    ("polyfleet_engine_prompt_tokens", "Prompt tokens taken in.", lambda s, _: s.prompt_tokens),
    ("polyfleet_engine_generation_tokens", "Tokens generated.", lambda s, _: s.generated_tokens),
    ("polyfleet_engine_steps", "Engine steps.", lambda s, _: s.steps),
    ("polyfleet_engine_step_seconds", "Time spent in engine steps.", lambda s, _: s.step_seconds),
    ("polyfleet_preemptions", "Sequences put back to wait for blocks.", lambda s, _: s.preemptions),
    ("polyfleet_engine_memory_shortages", "Steps without memory on the device.", lambda s, _: s.memory_shortages),
    ("polyfleet_kv_evictions", "Cached KV blocks that made way for others.", lambda s, _: s.evictions),
    ("polyfleet_engine_dropped_rows", "Rows computed ahead for ended sequences.", lambda s, _: s.dropped_rows),
    ("polyfleet_engine_drafts", "Tokens guessed and computed to be verified.", lambda s, _: s.drafts),
    ("polyfleet_prefix_restored_tokens", "Prompt tokens put back from host memory.", lambda s, _: s.restored_tokens),
    ("polyfleet_prefix_disk_tokens", "Prompt tokens read from local disk.", lambda s, _: s.disk_tokens),
    ("polyfleet_prefix_fetched_tokens", "Prompt tokens fetched from other workers.", lambda s, _: s.fetched_tokens),
    ("polyfleet_prefix_given_tokens", "Prompt tokens given to other workers.", lambda s, _: s.given_tokens),
    ("polyfleet_prompts_for_others", "Prompts computed for other workers.", lambda s, _: s.prompts_for_others),
    ("polyfleet_engine_accepted_drafts", "Drafts that were drawn.", lambda s, _: s.accepted_drafts),
)
HELD = "Prefixes that another worker was said to hold: fetched, or why they were computed."
APART = "Prompts that another worker was to compute: fetched, or why they were computed here."
LEDGER_STATES = ("admitted", "finished", "failed", "cancelled", "running", "waiting")


class WorkerCollector(Collector):
    """Reads one worker; called on the metrics server's thread, which only ever reads."""

    def __init__(self, worker: Worker, devices: DeviceWatch | None) -> None:
        self._worker = worker
        self._devices = devices

    def collect(self) -> Iterator[Any]:
        """All families of this moment."""
        info, status = self._worker.info(), self._worker.engine_status()
        labels = (info.model.name, info.accelerator)
        yield from self._of_the_worker(labels)
        if self._devices is not None and self._devices.states:
            yield from device_families(*self._devices.states)
        if info.HasField("model"):
            yield from self._of_the_model(info.model, status, labels)
            yield from self._worker.histograms.families(LABELS, labels)
            yield _ledger(status)
            yield _fetches("polyfleet_prefix_fetches", HELD, status.fetches, status.failed_fetches)
            yield _fetches("polyfleet_prefills_apart", APART, status.prefills_apart, status.failed_prefills_apart)
            yield _disk_problems(status)

    def _of_the_worker(self, labels: tuple[str, str]) -> Iterator[Any]:
        ready = GaugeMetricFamily("polyfleet_worker_ready", "1 when it takes requests.", labels=LABELS)
        ready.add_metric(labels, float(self._worker.state == fleet.WORKER_STATE_READY))
        yield ready
        runs = CounterMetricFamily("polyfleet_canary_runs", "Runs of the canary by how they ended.", labels=("result",))
        for result in CanaryResult:
            runs.add_metric((result.value,), self._worker.watchdog.runs[result])
        yield runs
        text = "Engine processes that were replaced, since they answered wrongly or not at all."
        replaced = CounterMetricFamily("polyfleet_engine_replacements", text, labels=LABELS)
        replaced.add_metric(labels, self._worker.watchdog.replacements)
        yield replaced

    def _of_the_model(self, model: fleet.ModelInfo, status: EngineStatus, labels: tuple[str, str]) -> Iterator[Any]:
        for family, readings in ((GaugeMetricFamily, GAUGES), (CounterMetricFamily, COUNTERS)):
            for name, text, reading in readings:
                metric = family(name, text, labels=LABELS)
                metric.add_metric(labels, reading(status, model.num_blocks))
                yield metric
        peak = self._worker.peak.per_second
        for name, text, value in (
            ("polyfleet_kv_block_tokens", "Tokens that a KV block holds.", model.block_size),
            ("polyfleet_engine_peak_tokens_per_second", "Most tokens generated in a second of steps.", peak),
            ("polyfleet_adapters", "LoRA adapters that are served.", sum(bool(a.fingerprint) for a in model.adapters)),
        ):
            fact = GaugeMetricFamily(name, text, labels=LABELS)
            fact.add_metric(labels, value)
            yield fact


def _ledger(status: EngineStatus) -> GaugeMetricFamily:
    text = "Admitted = all other states together."
    ledger = GaugeMetricFamily("polyfleet_engine_ledger_sequences", text, labels=("state",))
    for state in LEDGER_STATES:
        count = getattr(status, f"{state}_sequences", None)
        ledger.add_metric((state,), getattr(status, state) if count is None else count)
    return ledger


def _fetches(name: str, text: str, fetched: int, failed: Sequence[int]) -> CounterMetricFamily:
    fetches = CounterMetricFamily(name, text, labels=("outcome",))
    fetches.add_metric(("fetched",), fetched)
    for reason, count in zip_longest(FAILURES, failed, fillvalue=0):
        fetches.add_metric((str(reason),), count)
    return fetches


def _disk_problems(status: EngineStatus) -> CounterMetricFamily:
    text = "What of the KV blocks on local disk could not be kept, or not be used, by why."
    problems = CounterMetricFamily("polyfleet_kv_disk_problems", text, labels=("problem",))
    for problem, count in zip_longest(DISK_PROBLEMS, status.disk_problems, fillvalue=0):
        problems.add_metric((str(problem),), count)
    return problems


def _health(worker: Worker) -> dict[str, Callable[[], bool]]:
    """Whether it lives, and whether its model is ready: as its gRPC health service says."""
    return {"/healthz": lambda: not worker.failed, "/readyz": lambda: worker.state == fleet.WORKER_STATE_READY}


def serve_metrics(worker: Worker, listen: str, devices: DeviceWatch | None = None) -> MetricsServer:
    """/metrics of a worker and of its engine's process at host:port. Raises ListenError."""
    host, port = parse_address(listen, METRICS_LISTEN)
    engine = ProcessCollector("engine", lambda: worker.engine_pid or "none", registry=None)  # the process that computes
    try:
        return MetricsServer(host, port, WorkerCollector(worker, devices), engine, health=_health(worker))
    except OSError as error:
        raise ListenError(listen, METRICS_LISTEN, error) from None

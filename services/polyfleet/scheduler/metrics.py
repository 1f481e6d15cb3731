"""The scheduler's `/metrics`: read from its state at each scrape, so that no series outlives what it counts.

Beside it `/targets`: the workers' own `/metrics`, for Prometheus' `http_sd_configs`.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from polyfleet.placement.proto import state_from_proto
from polyfleet.process.metrics import MetricsServer
from polyfleet.scheduler.deployments.pool_shares import taken_back
from polyfleet.scheduler.launcher.launch import LauncherReport
from polyfleet.scheduler.revisions import newest_problem
from polyfleet.v1 import fleet_pb2 as pb


@dataclass(frozen=True, slots=True)
class SchedulerState:
    """What is measured, at one moment."""

    snapshot: pb.FleetSnapshot
    watchers: int
    reports: tuple[LauncherReport, ...]
    nodes: int  # of Ray; 0 while it does not answer


class SchedulerMetrics:
    """A Prometheus collector. `read` gives the state of one moment; it is called on the thread of the scrape."""

    def __init__(self, read: Callable[[], SchedulerState]) -> None:
        self._read = read
        self._restarts: Counter[str] = Counter()
        self._seen: dict[str, int] = {}

    def collect(self) -> Iterator[Metric]:
        """All series now; the names are those of docs/architecture.md."""
        state = self._read()
        yield _workers(state.snapshot)
        yield _quarantined(state.snapshot)
        yield from _deployments(state.snapshot)
        yield from _revisions(state.snapshot)
        yield from _models(state.snapshot)
        yield self._restart_counts(state.reports)
        version = "Version of the fleet snapshot, within one epoch"
        yield GaugeMetricFamily("polyfleet_snapshot_version", version, state.snapshot.version)
        yield GaugeMetricFamily("polyfleet_snapshot_watchers", "Open streams of WatchFleet", state.watchers)
        yield GaugeMetricFamily("polyfleet_ray_nodes", "Ray's living nodes; 0 while it does not answer", state.nodes)

    def targets(self) -> list[dict[str, Any]]:
        """Where workers show their metrics now, as Prometheus' HTTP service discovery wants it."""
        return [
            {
                "targets": [worker.info.metrics_address],
                "labels": {"worker_id": worker.info.worker_id, "node": worker.info.host, **_way(worker.info)},
            }
            for worker in self._read().snapshot.workers
            if worker.info.metrics_address and worker.status.state != pb.WORKER_STATE_LOST
        ]

    def _restart_counts(self, reports: Sequence[LauncherReport]) -> CounterMetricFamily:
        """Sums that never fall, though launchers come, go, and begin again from 0."""
        for report in reports:
            before = self._seen.get(report.spec.worker_id, 0)
            new = report.restarts - before if report.restarts >= before else report.restarts
            self._restarts[report.spec.deployment] += new
        self._seen = {report.spec.worker_id: report.restarts for report in reports}
        family = CounterMetricFamily(
            "polyfleet_worker_restarts_total", "Workers that were started again after a failure", labels=["deployment"]
        )
        for deployment, restarts in sorted(self._restarts.items()):
            family.add_metric([deployment], restarts)
        return family


def _workers(snapshot: pb.FleetSnapshot) -> GaugeMetricFamily:
    counts = Counter(
        (worker.info.model.name, worker.info.accelerator, state_from_proto(worker.status.state).value)
        for worker in snapshot.workers
    )
    family = GaugeMetricFamily("polyfleet_workers", "Known workers", labels=["model", "accelerator", "state"])
    for labels, count in sorted(counts.items()):
        family.add_metric(labels, count)
    return family


def _quarantined(snapshot: pb.FleetSnapshot) -> GaugeMetricFamily:
    """One for each; the reason without its value, of which there is no end."""
    text = "1 of a worker that gets no requests, since its last report can't be true"
    family = GaugeMetricFamily("polyfleet_worker_quarantined", text, labels=["worker_id", "reason"])
    for worker in snapshot.workers:
        if worker.quarantine:
            family.add_metric([worker.info.worker_id, worker.quarantine.partition(":")[0]], 1)
    return family


def _deployments(snapshot: pb.FleetSnapshot) -> Iterator[GaugeMetricFamily]:
    ready = Counter(w.info.deployment for w in snapshot.workers if w.status.state == pb.WORKER_STATE_READY)
    desired = GaugeMetricFamily(
        "polyfleet_deployment_workers_desired", "Workers that a deployment wants", labels=["deployment"]
    )
    have = GaugeMetricFamily(
        "polyfleet_deployment_workers_ready", "Workers of a deployment that are ready", labels=["deployment"]
    )
    for deployment in snapshot.deployments:
        desired.add_metric([deployment.name], deployment.workers)
        have.add_metric([deployment.name], ready[deployment.name])
    yield desired
    yield have


def _revisions(snapshot: pb.FleetSnapshot) -> Iterator[GaugeMetricFamily]:
    """Those that have workers; and of each deployment, whether its newest one was taken back; a pool is one itself."""
    ready = Counter[tuple[str, str]]()
    for worker in snapshot.workers:
        if worker.info.revision:
            is_ready = worker.status.state == pb.WORKER_STATE_READY
            ready[worker.info.deployment, str(worker.info.revision)] += is_ready
    have = GaugeMetricFamily(
        "polyfleet_revision_workers_ready",
        "Workers of a deployment's revision that are ready",
        labels=["deployment", "revision"],
    )
    for labels, count in sorted(ready.items()):
        have.add_metric(labels, count)
    yield have
    back = GaugeMetricFamily(
        "polyfleet_rollout_taken_back", "1 where the newest revision was taken back", labels=["deployment"]
    )
    for deployment in snapshot.deployments:
        back.add_metric([deployment.name], bool(newest_problem(deployment)))
    for pool in snapshot.pools:
        if pool.HasField("traffic_percent"):
            back.add_metric([pool.name], bool(taken_back(pool)))
    yield back


def _models(snapshot: pb.FleetSnapshot) -> Iterator[GaugeMetricFamily]:
    """Of each model that a deployment or a pool wants; a worker that is gone leaves its wish behind."""
    wanted = Counter[str]()
    for wish in (*snapshot.deployments, *snapshot.pools):
        wanted[wish.model_name or wish.name] += wish.workers
    ready = Counter(w.info.model.name for w in snapshot.workers if w.status.state == pb.WORKER_STATE_READY)
    desired = GaugeMetricFamily(
        "polyfleet_model_workers_desired", "Workers that deployments and pools want for a model", labels=["model"]
    )
    have = GaugeMetricFamily("polyfleet_model_workers_ready", "Workers of a model that are ready", labels=["model"])
    for model, workers in sorted(wanted.items()):
        desired.add_metric([model], workers)
        have.add_metric([model], ready[model])
    yield desired
    yield have


def serve_metrics(host: str, port: int, metrics: SchedulerMetrics, serving: Callable[[], bool]) -> MetricsServer:
    """Serve a collector at `/metrics`, `/targets`, and for probes whether it is `serving`. Raises OSError."""
    health = {"/healthz": serving, "/readyz": serving}
    return MetricsServer(host, port, metrics, around=partial(_with_targets, metrics), health=health)


def _with_targets(metrics: SchedulerMetrics, others: Any) -> Any:
    """A WSGI application: `/targets`, and `others` for every other path."""

    def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if environ["PATH_INFO"] != "/targets":
            return others(environ, start_response)  # type: ignore[no-any-return]
        start_response("200 OK", [("Content-Type", "application/json")])
        return [json.dumps(metrics.targets()).encode()]

    return application


def _way(info: pb.WorkerInfo) -> dict[str, str]:
    """A label of agents' workers, whom nothing but a gateway leads to, where others are found as pods."""
    return {"joined": "true"} if info.joined else {}

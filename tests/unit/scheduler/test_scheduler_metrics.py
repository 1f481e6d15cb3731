"""The scheduler's /metrics: names and labels of docs/architecture.md, values of a given state."""

import json
import urllib.error
import urllib.request
from dataclasses import replace

import pytest
from tests.support.ports import free_address

from polyfleet.scheduler.config import LaunchConfig
from polyfleet.scheduler.launcher.launch import LauncherReport, LaunchSpec
from polyfleet.scheduler.metrics import SchedulerMetrics, SchedulerState, serve_metrics
from polyfleet.v1 import fleet_pb2 as pb
from polyfleet.v1 import worker_pb2

LOAD = worker_pb2.LoadRequest(deployment="d").SerializeToString()
REPORT = LauncherReport(LaunchSpec("w-1", "cpu", LOAD, LaunchConfig(), "", ""), restarts=2)


def worker(model: str, state: str, deployment: str = "d") -> pb.FleetWorker:
    info = pb.WorkerInfo(accelerator="cpu", deployment=deployment, model=pb.ModelInfo(name=model))
    return pb.FleetWorker(info=info, status=pb.WorkerStatus(state=pb.WorkerState.Value(f"WORKER_STATE_{state}")))


SNAPSHOT = pb.FleetSnapshot(
    version=7,
    workers=[worker("m", "READY"), worker("m", "READY", "other"), worker("m", "LOST"), worker("", "STARTING")],
    deployments=[pb.ModelDeployment(name="d", workers=3), pb.ModelDeployment(name="idle", workers=0)],
    pools=[
        pb.ModelDeployment(name="a", model_name="m", workers=3),
        pb.ModelDeployment(name="b", model_name="m", workers=1),
    ],
)


@pytest.fixture
def state() -> SchedulerState:
    return SchedulerState(SNAPSHOT, 2, (REPORT,), 4)


def values(metrics: SchedulerMetrics) -> dict[str, float]:
    return {
        sample.name + "".join(f" {key}={value}" for key, value in sorted(sample.labels.items())): sample.value
        for family in metrics.collect()
        for sample in family.samples
    }


def test_a_state_of_a_newer_version_is_counted_as_unknown() -> None:
    info = pb.WorkerInfo(accelerator="cpu")
    newer = [pb.FleetWorker(info=info, status=pb.WorkerStatus(state=state)) for state in (99, -1, 0)]  # type: ignore[arg-type]
    found = values(SchedulerMetrics(lambda: SchedulerState(pb.FleetSnapshot(workers=newer), 0, (), 1)))
    assert found["polyfleet_workers accelerator=cpu model= state=unknown"] == 3


def test_a_quarantined_worker_has_a_series_whose_reason_has_no_value() -> None:
    info = pb.WorkerInfo(worker_id="w-1", accelerator="cpu")
    odd = pb.FleetSnapshot(workers=[pb.FleetWorker(info=info, quarantine="free blocks: 9 of 8")])
    found = values(SchedulerMetrics(lambda: SchedulerState(odd, 0, (), 1)))
    assert found["polyfleet_worker_quarantined reason=free blocks worker_id=w-1"] == 1


def test_each_revision_with_workers_has_a_series_and_one_that_was_taken_back_shows() -> None:
    workers = [worker("m", state) for state in ("READY", "LOADING", "READY", "READY")]
    for each, revision in zip(workers, (2, 3, 2, 0), strict=True):
        each.info.revision = revision
    wish = pb.ModelDeployment(name="d", revision=2, revisions=[pb.Revision(number=3, problem="It is bad.")])
    snapshot = pb.FleetSnapshot(workers=workers, deployments=[wish])
    found = values(SchedulerMetrics(lambda: SchedulerState(snapshot, 0, (), 1)))
    assert {name: value for name, value in found.items() if "revision" in name or "rollout" in name} == {
        "polyfleet_revision_workers_ready deployment=d revision=2": 2,
        "polyfleet_revision_workers_ready deployment=d revision=3": 0,
        "polyfleet_rollout_taken_back deployment=d": 1,
    }


def test_every_series_has_its_value(state: SchedulerState) -> None:
    assert values(SchedulerMetrics(lambda: state)) == {
        "polyfleet_workers accelerator=cpu model=m state=ready": 2,
        "polyfleet_workers accelerator=cpu model=m state=lost": 1,
        "polyfleet_workers accelerator=cpu model= state=starting": 1,
        "polyfleet_model_workers_desired model=d": 3,
        "polyfleet_model_workers_desired model=idle": 0,
        "polyfleet_model_workers_desired model=m": 4,
        "polyfleet_model_workers_ready model=d": 0,
        "polyfleet_model_workers_ready model=idle": 0,
        "polyfleet_model_workers_ready model=m": 2,
        "polyfleet_deployment_workers_desired deployment=d": 3,
        "polyfleet_deployment_workers_desired deployment=idle": 0,
        "polyfleet_deployment_workers_ready deployment=d": 1,
        "polyfleet_deployment_workers_ready deployment=idle": 0,
        "polyfleet_rollout_taken_back deployment=d": 0,
        "polyfleet_rollout_taken_back deployment=idle": 0,
        "polyfleet_worker_restarts_total deployment=d": 2,
        "polyfleet_snapshot_version": 7,
        "polyfleet_snapshot_watchers": 2,
        "polyfleet_ray_nodes": 4,
    }


def test_restarts_never_fall_when_launchers_begin_again_or_go(state: SchedulerState) -> None:
    reports: list[LauncherReport] = [REPORT]
    metrics = SchedulerMetrics(lambda: replace(state, reports=tuple(reports)))
    counted = []
    for restarts in (2, 3, 1, None):
        reports[:] = [] if restarts is None else [replace(REPORT, restarts=restarts)]
        counted.append(values(metrics)["polyfleet_worker_restarts_total deployment=d"])
    assert counted == [2, 3, 4, 4]


def test_the_page_is_served_and_its_port_given_back(state: SchedulerState) -> None:
    host, _, port = free_address().partition(":")
    well = [True]
    for _ in range(2):
        server = serve_metrics(host, int(port), SchedulerMetrics(lambda: state), lambda: well[0])
        page = urllib.request.urlopen(f"http://{host}:{port}/metrics").read().decode()
        assert "polyfleet_snapshot_version 7.0\n" in page
        well[:] = [True]
        assert urllib.request.urlopen(f"http://{host}:{port}/healthz").status == 200
        for well[:] in ([False], []):  # no, and no answer
            with pytest.raises(urllib.error.HTTPError, match="503"):
                urllib.request.urlopen(f"http://{host}:{port}/readyz")
        server.stop()


def test_the_workers_that_are_there_are_told_to_prometheus(state: SchedulerState) -> None:
    infos = [("w-1", "10.0.0.1:9100", "READY"), ("w-2", "10.0.0.2:9100", "LOST"), ("w-3", "", "READY")]
    snapshot = pb.FleetSnapshot()
    for worker_id, address, now in infos:
        each = snapshot.workers.add(info=pb.WorkerInfo(worker_id=worker_id, metrics_address=address, host="node-a"))
        each.status.state = pb.WorkerState.Value(f"WORKER_STATE_{now}")
    snapshot.workers.add(info=pb.WorkerInfo(worker_id="mac", metrics_address="10.0.0.9:41", host="mac", joined=True))
    host, _, port = free_address().partition(":")
    server = serve_metrics(host, int(port), SchedulerMetrics(lambda: replace(state, snapshot=snapshot)), lambda: True)
    try:
        with urllib.request.urlopen(f"http://{host}:{port}/targets") as answer:
            assert answer.headers["Content-Type"] == "application/json"
            told = json.load(answer)
    finally:
        server.stop()
    assert told == [
        {"targets": ["10.0.0.1:9100"], "labels": {"worker_id": "w-1", "node": "node-a"}},
        {"targets": ["10.0.0.9:41"], "labels": {"worker_id": "mac", "node": "mac", "joined": "true"}},
    ]

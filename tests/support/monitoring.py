"""What tests of dashboards and alerts share: the files, the names of metrics in PromQL, and those that code exports."""

import dataclasses
import re
import shutil
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from tools.dashboards.boards import DASHBOARDS

from polyfleet.backends.protocol import DeviceInfo, DeviceStrain, DeviceTelemetry, Health
from polyfleet.gateway.config import Objectives
from polyfleet.gateway.metrics import Metrics
from polyfleet.scheduler.metrics import SchedulerMetrics, SchedulerState
from polyfleet.serving.device_metrics import device_families
from polyfleet.serving.health.device_watch import DeviceState
from polyfleet.serving.metrics import WorkerCollector
from polyfleet.serving.worker import Worker
from polyfleet.v1 import fleet_pb2 as fleet

ROOT = Path(__file__).parents[2]
RULES = ROOT / "charts" / "polyfleet" / "rules" / "alerts.yaml"
RUNBOOKS = ROOT / "docs" / "runbooks"
Rule = dict[str, Any]
METRIC = re.compile(r"\bpolyfleet[_:][a-z0-9_:]+")
HISTOGRAM_PARTS = ("_bucket", "_sum", "_count")

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed: apt-get install prometheus"
)
needs_prometheus = pytest.mark.skipif(
    shutil.which("prometheus") is None, reason="prometheus is not installed: apt-get install prometheus"
)


def rules() -> list[Rule]:
    """All rules of all groups."""
    groups = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def alerts() -> list[Rule]:
    """The rules that are alerts."""
    return [rule for rule in rules() if "alert" in rule]


def panel_queries() -> dict[str, str]:
    """Every dashboard's queries as Grafana has them, by dashboard, panel and number."""
    return {
        f"{board.name}: {panel.title} {index}": query.expr
        for board in DASHBOARDS
        for panel in board.panels
        for index, query in enumerate(panel.queries, 1)
    }


def metrics_in(promql: str) -> set[str]:
    """Names of Polyfleet's metrics in a query."""
    return set(METRIC.findall(re.sub(r'"[^"]*"', '""', promql)))


@cache
def exported() -> dict[str, set[str]]:
    """Every metric that the code's own registries and collectors export, as its samples are called, with its labels."""
    gateway = Metrics()
    gateway.show_objectives(Objectives())
    declared: list[Any] = list(gateway.registry._collector_to_names)
    labels = {sample: set(each._labelnames) for each in declared for sample in _samples(each)}
    odd = fleet.FleetWorker(info=fleet.WorkerInfo(revision=1), quarantine="free blocks: 9 of 8")
    snapshot = fleet.FleetSnapshot(workers=[odd], deployments=[fleet.ModelDeployment()])
    collected: list[Any] = list(SchedulerMetrics(lambda: SchedulerState(snapshot, 0, (), 0)).collect())
    info = fleet.WorkerInfo(model=fleet.ModelInfo(num_blocks=1))
    collected += WorkerCollector(Worker(info, "cpu"), None).collect()
    names = (each.name for each in dataclasses.fields(DeviceStrain) if each.name != "throttle_reasons")
    strain = DeviceStrain(throttle_reasons=("thermal",), **dict.fromkeys(names, 1))  # type: ignore[arg-type]
    telemetry = DeviceTelemetry(0, Health.HEALTHY, "", 1, 1, 1, 1, 1, 1, 1, strain=strain)
    collected += device_families(DeviceState("cpu", telemetry, DeviceInfo(0, "", "", 1), {"XID 79": 1}))
    for family in collected:
        for sample in family.samples:
            labels.setdefault(sample.name, set()).update(sample.labels)
    labels.setdefault("polyfleet_worker_restarts_total", {"deployment"})  # has samples once there is a launcher
    labels.setdefault("polyfleet_tls_certificate_expiry_timestamp_seconds", set())  # is there with TLS only
    return labels


def _samples(collector: Any) -> Iterable[str]:
    """What the samples of a Counter, Gauge or Histogram are called."""
    name = collector._name
    if collector._type == "histogram":
        return tuple(name + part for part in HISTOGRAM_PARTS)
    return (f"{name}_total",) if collector._type == "counter" else (name,)

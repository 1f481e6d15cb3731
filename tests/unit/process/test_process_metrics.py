"""What every process shows of itself."""

import asyncio
import sys
import time
from importlib.metadata import version

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from polyfleet.process import metrics as process_metrics
from polyfleet.process.metrics import ProcessMetrics


def test_build_and_process_are_shown() -> None:
    registry = CollectorRegistry()
    metrics = ProcessMetrics(registry)
    python = ".".join(map(str, sys.version_info[:3]))
    labels = {"version": version("polyfleet"), "python": python}
    assert registry.get_sample_value("polyfleet_build_info", labels) == 1
    registry.register(metrics.others)  # as scheduler and worker show it
    shown = generate_latest(registry).decode()
    assert shown.count("# TYPE polyfleet_build_info") == 1
    if sys.platform == "linux":
        assert {"process_resident_memory_bytes", "process_cpu_seconds_total", "process_open_fds"} <= {
            line.split(" ")[0] for line in shown.splitlines()
        }


async def test_a_loop_that_is_held_is_seen_to_lag(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_metrics, "LOOK_SECONDS", 0.001)
    registry = CollectorRegistry()
    task = asyncio.create_task(ProcessMetrics(registry).watch_loop())
    value = registry.get_sample_value
    while not value("polyfleet_event_loop_lag_seconds_count"):
        await asyncio.sleep(0.001)
    before = value("polyfleet_event_loop_lag_seconds_sum") or 0
    time.sleep(0.3)  # what must not happen elsewhere
    while (value("polyfleet_event_loop_lag_seconds_sum") or 0) < before + 0.25:
        await asyncio.sleep(0.001)
    task.cancel()

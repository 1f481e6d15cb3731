"""The alert on missing workers, in a real Prometheus that scrapes a real scheduler with a pool of the chart."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from tests.support import running_scheduler
from tests.support.fake_worker import FakeWorker
from tests.support.monitoring import RULES, needs_prometheus
from tests.support.ports import free_address, free_addresses
from tests.support.prometheus import PrometheusProcess, configuration

from polyfleet.scheduler.config import PoolConfig

pytestmark = needs_prometheus

ALERT = "PolyfleetWorkersMissing"


def hasty_rules(folder: Path) -> Path:
    """The rules as they are, but that they fire after a second."""
    document = yaml.safe_load(RULES.read_text(encoding="utf-8"))
    for group in document["groups"]:
        for rule in group["rules"]:
            if "for" in rule:
                rule["for"] = "1s"
    path = folder / "rules.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


def firing(prometheus: PrometheusProcess) -> dict[str, str]:
    """Model and value of each alert of that name that fires."""
    found = prometheus.get("alerts")["alerts"]
    mine = [each for each in found if each["labels"]["alertname"] == ALERT and each["state"] == "firing"]
    return {each["labels"]["model"]: each["annotations"]["summary"] for each in mine}


async def until(prometheus: PrometheusProcess, condition: Callable[[dict[str, str]], Any]) -> None:
    """Poll beside the scheduler's loop."""
    deadline = time.monotonic() + 120
    while not condition(found := await asyncio.to_thread(firing, prometheus)):
        assert time.monotonic() < deadline, found
        await asyncio.sleep(0.1)


async def test_it_fires_with_no_worker_left_and_ends_with_the_last_one_that_came(tmp_path: Path) -> None:
    (nobody,) = free_addresses(1)
    pools = {"cpu": PoolConfig("fake", "cpu", 2)}
    metrics = free_address()
    running = await running_scheduler.start(tmp_path / "state", pools=pools, settle_seconds=0.0, metrics_listen=metrics)
    config = configuration(nobody, metrics)
    config["rule_files"] = [str(hasty_rules(tmp_path))]
    process = PrometheusProcess(tmp_path, config)
    prometheus = await asyncio.to_thread(process.__enter__)
    try:
        await until(prometheus, lambda now: now == {"fake": "fake lacks 2 of the workers that it is to have."})
        async with FakeWorker("w-1", fleet=running.address):
            await until(prometheus, lambda now: now == {"fake": "fake lacks 1 of the workers that it is to have."})
            async with FakeWorker("w-2", fleet=running.address):
                await until(prometheus, lambda now: not now)
            await until(prometheus, lambda now: "lacks 1" in now.get("fake", ""))
        await until(prometheus, lambda now: "lacks 2" in now.get("fake", ""))
    finally:
        await asyncio.to_thread(process.__exit__)
        await running_scheduler.stop(running)

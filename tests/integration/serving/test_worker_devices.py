"""The worker process and its device: /metrics shows it, and an unhealthy one suspends the worker until it recovers."""

import asyncio
import urllib.request
from pathlib import Path

import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.support import lab_backend
from tests.support.fake_fleet import FakeFleet
from tests.support.running_worker import RunningWorker

from polyfleet.v1 import fleet_pb2 as fleet

Labels = dict[str, str]
LAB = {"accelerator": "lab", "device": "0", "product": "Lab One", "uuid": "LAB-1"}


async def device_series(worker: RunningWorker) -> dict[str, list[tuple[Labels, float]]]:
    """Labels and value of every polyfleet_device_* sample, by name."""

    def get() -> str:
        with urllib.request.urlopen(f"http://{worker.lock.metrics_address}/metrics") as answer:
            return str(answer.read().decode())

    found: dict[str, list[tuple[Labels, float]]] = {}
    for family in text_string_to_metric_families(await asyncio.to_thread(get)):
        for sample in family.samples:
            if sample.name.startswith("polyfleet_device_"):
                found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


async def test_an_unhealthy_device_suspends_its_worker_until_it_is_well(tmp_path: Path) -> None:
    device = tmp_path / "device"
    device.write_text("")
    environ = lab_backend.install(tmp_path / "site", device)
    async with FakeFleet() as scheduler:
        options = ("--accelerator", "lab", "--telemetry-interval", "0.1", "--fleet", scheduler.address)
        async with RunningWorker(tmp_path, *options, model="fake:", environ=environ) as worker:
            info = (await worker.status()).info
            assert (info.accelerator, info.device_name) == ("lab", "Lab One")
            series = await device_series(worker)
            assert series["polyfleet_device_temperature_celsius"] == [(LAB, 42.5)]
            assert ({**LAB, "state": "healthy"}, 1.0) in series["polyfleet_device_health"]
            facts = {"driver_version": "", "pci_bus_id": "", "architecture": "l1"}
            assert series["polyfleet_device_info"] == [({**LAB, **facts}, 1.0)]
            assert "polyfleet_device_power_watts" not in series

            device.write_text("it fell off the bus")
            reason = "The lab device 0 is unhealthy: it fell off the bus."
            await scheduler.until(lambda: scheduler.statuses[-1].reason == reason)
            assert scheduler.statuses[-1].state == fleet.WORKER_STATE_UNHEALTHY
            health = (await device_series(worker))["polyfleet_device_health"]
            assert ({**LAB, "state": "unhealthy"}, 1.0) in health
            assert ({**LAB, "state": "healthy"}, 0.0) in health

            device.write_text("")
            await worker.until_state(fleet.WORKER_STATE_READY)
            assert (await worker.status()).status.reason == ""
        assert [state for state in scheduler.states() if state != "LOADING"][-3:] == ["READY", "UNHEALTHY", "READY"]


@pytest.mark.parametrize(
    ("options", "index"),
    [(["--place", "1"], 1), (["--place", "2"], 0), (["--device", "lab:1", "--place", "0"], 1), ([], 0)],
)
async def test_a_worker_takes_the_device_of_its_place_alone(tmp_path: Path, options: list[str], index: int) -> None:
    (tmp_path / "device").write_text("")
    environ = lab_backend.install(tmp_path / "site", tmp_path / "device", devices="1,0")
    asked = ("--accelerator", "lab", "--telemetry-interval", "0.1", *options)
    async with RunningWorker(tmp_path, *asked, model="fake:", environ=environ) as worker:
        info = (await worker.status()).info
        assert (info.device_name, info.device_index) == (("Lab Two", "Lab One")[index], index)
        (engine,) = psutil.Process(worker.lock.pid).children()
        assert engine.environ()[lab_backend.VISIBLE] == ("1", "0")[index]
        while not (series := await device_series(worker)):
            await asyncio.sleep(0.02)
        ((labels, _),) = series["polyfleet_device_temperature_celsius"]
        assert (labels["device"], labels["product"]) == (str(index), info.device_name)


async def test_a_cpu_worker_shows_its_memory_and_load(tmp_path: Path) -> None:
    async with RunningWorker(tmp_path, "--telemetry-interval", "0.1") as worker:
        while not (series := await device_series(worker)):
            await asyncio.sleep(0.02)
        ((labels, total),) = series["polyfleet_device_memory_total_bytes"]
        ((_, used),) = series["polyfleet_device_memory_used_bytes"]
        assert 0 < used < total
        assert (labels["accelerator"], labels["device"], labels["uuid"]) == ("cpu", "0", "")
        assert labels["product"]
        ((_, load),) = series["polyfleet_device_utilization_ratio"]
        assert 0 <= load <= 1
        assert "polyfleet_device_temperature_celsius" not in series

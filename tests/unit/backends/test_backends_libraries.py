"""Vendors' libraries, NVML and amdsmi, by stand-ins: order, readings that break or are withheld, MIG, the child."""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.vendor_libraries import fake_amdsmi, fake_nvml, probed

from polyfleet.backends import library_probe
from polyfleet.backends.host import Host, ToolResult
from polyfleet.backends.protocol import Health
from polyfleet.backends.reading import visible


def test_nvml_is_read_in_pci_order() -> None:
    first, second = library_probe.read_nvml(fake_nvml())
    assert (first.name, first.architecture, first.pci_bus_id) == ("NVIDIA H100 80GB HBM3", "sm_90", "0000:18:00.0")
    assert (second.name, second.power_watts, first.power_watts) == ("Tesla T4", None, 112.3)
    assert (first.utilization_ratio, first.clock_hertz) == (0.5, 345e6)


def test_a_lost_card_is_unhealthy_and_its_neighbour_is_not() -> None:
    nvml = fake_nvml()

    def handle(index: int) -> int:
        if index == 0:
            raise nvml.NVMLError("GPU is lost")
        return index

    vars(nvml)["nvmlDeviceGetHandleByIndex"] = handle
    lost, other = library_probe.read_nvml(nvml)
    assert (lost.index, lost.health, lost.reason) == (0, Health.UNHEALTHY, "GPU is lost")
    assert (other.index, other.health, other.pci_bus_id) == (1, Health.HEALTHY, "0000:18:00.0")
    vars(nvml)["nvmlDeviceGetHandleByIndex"] = lambda index: handle(0)
    with pytest.raises(nvml.NVMLError, match="GPU is lost"):
        library_probe.read_nvml(nvml)


def test_a_reading_that_is_withheld_is_unknown_and_one_that_breaks_is_not() -> None:
    nvml = fake_nvml()

    def fails(message: str) -> Any:
        def call(*_: object) -> None:
            raise nvml.NVMLError(message)

        return call

    for message in ("Not Supported", "Insufficient Permissions", "Function Not Found"):
        vars(nvml)["nvmlDeviceGetTemperature"] = fails(message)
        assert [(r.temperature_celsius, r.health) for r in library_probe.read_nvml(nvml)] == [
            (None, Health.HEALTHY)
        ] * 2
    vars(nvml)["nvmlDeviceGetTemperature"] = lambda card, sensor: fails("Unknown Error")() if card == 1 else 41
    assert [(r.health, r.reason) for r in library_probe.read_nvml(nvml)] == [
        (Health.HEALTHY, ""),
        (Health.UNHEALTHY, "Unknown Error"),
    ]


def test_a_card_whose_memory_is_the_host_s_is_a_card_without_that_reading() -> None:
    nvml = fake_nvml()

    def unsupported(card: int) -> None:
        raise nvml.NVMLError("Not Supported")

    vars(nvml)["nvmlDeviceGetMemoryInfo"] = unsupported
    for each in library_probe.read_nvml(nvml):
        assert (each.health, each.memory_total_bytes, each.memory_used_bytes) == (Health.HEALTHY, None, None)
        assert each.temperature_celsius == 41
        assert each.info().total_memory_bytes is None


def test_mig_devices_are_found_below_their_card(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = fake_nvml()

    def part(card: int, index: int) -> str:
        if card == 0 or index > 1:
            raise nvml.NVMLError("Not Found" if card else "Not Supported")
        return f"part-{index}"

    whole_name, whole_memory = nvml.nvmlDeviceGetName, nvml.nvmlDeviceGetMemoryInfo
    vars(nvml).update(
        nvmlDeviceGetMaxMigDeviceCount=lambda card: 7,
        nvmlDeviceGetMigDeviceHandleByIndex=part,
        nvmlDeviceGetUUID=lambda handle: f"MIG-{handle}" if isinstance(handle, str) else f"GPU-{handle}",
        nvmlDeviceGetName=lambda handle: "H100 MIG 1g.10gb" if isinstance(handle, str) else whole_name(handle),
        nvmlDeviceGetMemoryInfo=lambda handle: (
            SimpleNamespace(total=10 * 2**30, used=0) if isinstance(handle, str) else whole_memory(handle)
        ),
    )
    h100, t4 = library_probe.read_nvml(nvml)
    assert t4.partitions == ()
    assert [(each.uuid, each.name) for each in h100.partitions] == [
        ("MIG-part-0", "H100 MIG 1g.10gb"),
        ("MIG-part-1", "H100 MIG 1g.10gb"),
    ]
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    (chosen,) = visible(probed(monkeypatch).readings, "MIG-part-1")
    assert (chosen.index, chosen.memory_total_bytes, chosen.pci_bus_id) == (0, 10 * 2**30, "0000:18:00.0")


def test_amdsmi_takes_the_power_that_is_there() -> None:
    first, second = library_probe.read_amdsmi(fake_amdsmi())
    assert (first.uuid, first.architecture, first.pci_bus_id) == ("GPU-0cee36ddc4255115", "gfx942", "0000:05:00.0")
    assert (first.power_watts, first.temperature_celsius, first.utilization_ratio) == (92, 45, 1.0)
    assert (first.health, second.health) == (Health.HEALTHY, Health.UNHEALTHY)


def test_a_consumer_card_that_counts_no_errors_is_healthy() -> None:
    smi = fake_amdsmi()

    def unsupported(*_: object) -> None:
        raise RuntimeError("Error code: 2 | AMDSMI_STATUS_NOT_SUPPORTED - Feature not supported")

    for name in ("gpu_total_ecc_count", "power_info", "temp_metric", "gpu_activity"):
        vars(smi)[f"amdsmi_get_{name}"] = unsupported
    for each in library_probe.read_amdsmi(smi):
        assert (each.health, each.errors_total, each.power_watts) == (Health.HEALTHY, None, None)
        assert (each.temperature_celsius, each.utilization_ratio) == (None, None)
        assert each.memory_used_bytes == 283 * 2**20


def test_a_library_answers_through_a_child_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reading = asdict(library_probe.read_nvml(fake_nvml())[0])
    answer = json.dumps({"devices": [reading]})
    host = Host(run=lambda command, timeout: ToolResult("a warning of the library\n" + answer))
    (found,) = library_probe.probe_library(host, "nvml").readings
    assert (found.name, found.health) == ("NVIDIA H100 80GB HBM3", Health.HEALTHY)
    assert library_probe.probe_library(Host(run=lambda command, timeout: ToolResult("oops")), "nvml").problem
    (tmp_path / "pynvml.py").write_text("import os\nos._exit(3)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    crashed = library_probe.probe_library(Host(), "nvml")
    assert crashed.problem == "the nvml library's probe printed no answer (exit status 3)"
    assert sys.modules.get("pynvml") is None

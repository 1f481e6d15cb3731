"""Device metrics on described machines, and when a device's readings speak against it."""

import threading
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from tests.support.described_host import described, load_machine
from tests.support.watched_devices import Scripted, exposed

from polyfleet.backends import torch_build
from polyfleet.backends.protocol import DeviceTelemetry, Health
from polyfleet.backends.registry import BUILT_IN, BackendRegistry
from polyfleet.serving.health.device_watch import DeviceWatch, confined

GIB, MIB = 2**30, 2**20
Series = dict[str, float]


@pytest.mark.parametrize(
    ("device", "name", "variables"),
    [
        ("mps:0", "mps:0", {}),
        ("vulkan:1", "vulkan:1", {}),
        ("nonesuch:1", "nonesuch:1", {}),
        ("cambricon:3", "cambricon", {"MLU_VISIBLE_DEVICES": "3"}),
        ("cuda", "cuda", {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "0"}),
    ],
)
def test_a_device_alone(device: str, name: str, variables: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert confined(device) == (name, variables)


def on_machine(machine: str, family: str, root: Path, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> Any:
    """The family's backend on a described machine."""
    description = {**load_machine(machine), **changes}
    host, build, _ = described(description, root)
    modules = set(description.get("modules", []))
    monkeypatch.setattr(torch_build, "find_spec", lambda name: object() if name in modules else None)
    import_module(BUILT_IN[family])
    return BackendRegistry._factories[family](host=host, build=build)  # type: ignore[call-arg]


# Of each machine's last device: what its tool's recorded output says, read by eye and put into base units.
SHOWN: dict[str, tuple[str, dict[str, str], dict[str, str], Series]] = {
    "cuda": (
        "linux_nvidia_h100_x2",
        {"device": "1", "product": "NVIDIA H100 80GB HBM3", "uuid": "GPU-00000001"},
        {"driver_version": "570.86.10", "pci_bus_id": "0000:2a:00.0", "architecture": "sm_90"},
        {
            "temperature_celsius": 41,
            "power_watts": 112.3,
            "utilization_ratio": 0.03,
            "memory_used_bytes": 4 * MIB,
            "memory_total_bytes": 81559 * MIB,
            "clock_hertz": 1.98e9,
            "errors_total": 0,
        },
    ),
    "rocm": (
        "linux_amd_mi300x",
        {"device": "0", "product": "AMD Instinct MI300X", "uuid": "GPU-e3aa140f9a5f9e31"},
        {"driver_version": "6.10.5", "pci_bus_id": "0000:05:00.0", "architecture": "gfx942"},
        {
            "temperature_celsius": 40,
            "power_watts": 155,
            "utilization_ratio": 0,
            "memory_total_bytes": 206141652992,
            "clock_hertz": 139e6,
        },
    ),
    "hygon": (
        "linux_hygon_bw_x2",
        {"device": "1", "product": "BW100", "uuid": ""},
        {"driver_version": "6.3.31-V1.5.0a", "pci_bus_id": "0000:36:00.0", "architecture": "gfx936"},
        {
            "temperature_celsius": 51,
            "power_watts": 91,
            "utilization_ratio": 0,
            "memory_used_bytes": 9651 * MIB,
            "memory_total_bytes": 65520 * MIB,
        },
    ),
    "ascend": (
        "linux_ascend_a3_x2",
        {"device": "1", "product": "Ascend910", "uuid": ""},
        {"driver_version": "25.2.0", "pci_bus_id": "0000:9f:00.0", "architecture": "Ascend910_93"},
        {
            "temperature_celsius": 44,
            "utilization_ratio": 0.07,
            "memory_used_bytes": 61625 * MIB,
            "memory_total_bytes": 65536 * MIB,
            "errors_total": 0,
            "corrected_errors_total": 0,
            "remapped_rows": 0,
        },
    ),
    "cambricon": (
        "linux_cambricon_mlu370_x2",
        {"device": "1", "product": "MLU370-X8", "uuid": ""},
        {"driver_version": "5.10.13", "pci_bus_id": "0000:3d:00.0", "architecture": "MLU370"},
        {
            "temperature_celsius": 39,
            "power_watts": 106,
            "utilization_ratio": 0,
            "memory_used_bytes": 0,
            "memory_total_bytes": 23374 * MIB,
        },
    ),
    "xpu": (
        "linux_intel_b580",
        {"device": "0", "product": "Intel(R) Arc(TM) B580", "uuid": ""},
        {"driver_version": "9FF4708BCC22C0EE6FD801A", "pci_bus_id": "0000:03:00.0", "architecture": "arc-b"},
        {
            "temperature_celsius": 25,
            "power_watts": 66,
            "utilization_ratio": 0,
            "memory_used_bytes": 239 * MIB,
            "memory_total_bytes": 12216 * MIB,
        },
    ),
    "mps": (
        "macos_m4_max",
        {"device": "0", "product": "Apple M4 Max", "uuid": ""},
        {"driver_version": "", "pci_bus_id": "", "architecture": "metal4"},
        {"utilization_ratio": 0.16, "memory_used_bytes": 2363801600, "memory_total_bytes": 64 * GIB},
    ),
}


@pytest.mark.parametrize("family", SHOWN)
def test_every_vendors_readings_are_the_same_series_and_withheld_ones_are_absent(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine, identity, facts, readings = SHOWN[family]
    backend = on_machine(machine, family, tmp_path, monkeypatch)
    series, labels = exposed(DeviceWatch(backend, int(identity["device"]), 1.0).poll())
    health = {"health healthy": 1, "health unhealthy": 0, "health unknown": 0}
    assert series == {**readings, **health, "info": 1}
    for each in labels:
        extra = {"info": facts, "health": {"state": each.get("state", "")}}.get(each["metric"], {})
        assert each == {"metric": each["metric"], "accelerator": family, **identity, **extra}


def test_a_wedged_device_is_shown_unhealthy_without_readings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = on_machine("linux_nvidia_wedged", "cuda", tmp_path, monkeypatch)
    watch = DeviceWatch(backend, 0, 1.0)
    series, labels = exposed(watch.poll())
    assert series == {"health healthy": 0, "health unhealthy": 1, "health unknown": 0, "info": 1}
    assert {each["device"] for each in labels} == {"0"}
    assert watch.trouble() == "", "one bad reading may be a busy driver"
    watch.poll()
    assert watch.trouble() == "The cuda device 0 is unhealthy: nvidia-smi did not answer within 5 s."


def test_a_count_of_errors_that_the_tool_gives_is_a_counter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tools = load_machine("linux_nvidia_h100_x2")["tools"]
    (query,) = tools
    broken = {query: {"output": tools[query]["output"].replace("3, 0, 1980", "3, 7, 1980", 1)}}
    backend = on_machine("linux_nvidia_h100_x2", "cuda", tmp_path, monkeypatch, tools=broken)
    mine, other = DeviceWatch(backend, 0, 1.0), DeviceWatch(backend, 1, 1.0)
    for _ in range(2):
        assert exposed(mine.poll())[0]["errors_total"] == 7
        other.poll()
    assert mine.trouble() == "The cuda device 0 is unhealthy: 7 uncorrected ECC errors."
    assert other.trouble() == "", "a worker looks at its own device only"


GOOD, BAD = DeviceTelemetry(0, Health.HEALTHY), DeviceTelemetry(0, Health.UNHEALTHY, "it is on fire")
UNKNOWN = DeviceTelemetry(0, Health.UNKNOWN, "withheld")


def troubles(readings: list[DeviceTelemetry]) -> list[bool]:
    backend: Any = Scripted()
    watch = DeviceWatch(backend, 0, 1.0)
    found = []
    for each in readings:
        backend.readings = [each]
        watch.poll()
        found.append(bool(watch.trouble()))
    return found


def test_two_unhealthy_readings_running_are_trouble_until_one_is_not() -> None:
    assert troubles([BAD, GOOD, BAD, BAD, BAD, GOOD]) == [False, False, False, True, True, False]
    assert troubles([BAD, UNKNOWN, BAD, BAD, UNKNOWN]) == [False, False, False, True, False]


def test_a_device_is_found_by_its_address_and_missing_when_its_tool_does_not_list_it() -> None:
    first, second = (DeviceTelemetry(n, Health.HEALTHY, pci_bus_id=f"0000:0{n}:00.0") for n in range(2))
    backend: Any = Scripted(first, second)
    watch = DeviceWatch(backend, 1, 1.0)
    assert watch.poll().telemetry == second
    backend.readings = [DeviceTelemetry(0, Health.UNHEALTHY, "hot", pci_bus_id=second.pci_bus_id)]
    moved = watch.poll().telemetry
    assert (moved.index, moved.reason) == (1, "hot")
    backend.readings = [first]
    watch.poll()
    assert watch.trouble() == "The sample device 1 is unhealthy: its tool does not list it."


def test_a_backend_that_raises_is_an_unhealthy_device() -> None:
    backend: Any = Scripted(GOOD)
    backend.known = False
    watch = DeviceWatch(backend, 0, 1.0)
    state = watch.poll()
    assert (state.info, state.telemetry.health) == (None, Health.HEALTHY)
    backend.telemetry = lambda: 1 / 0
    watch.poll()
    watch.poll()
    assert "its probe broke: division by zero" in watch.trouble()


def test_the_thread_tells_of_each_poll_and_ends() -> None:
    backend: Any = Scripted(BAD)
    heard: list[str] = []
    enough = threading.Event()

    def judged(reason: str) -> None:
        heard.append(reason)
        if len(heard) == 3:
            enough.set()

    watch = DeviceWatch(backend, 0, 0.01)
    watch.start(judged)
    assert enough.wait(30)
    watch.stop()
    count = len(heard)
    assert heard[:3] == ["", *["The sample device 0 is unhealthy: it is on fire."] * 2]
    assert not any(thread.name == "devices" for thread in threading.enumerate())
    assert len(heard) == count

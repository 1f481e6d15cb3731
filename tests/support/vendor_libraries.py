"""Stand-ins for vendors' libraries, and what the probe reads of them."""

from types import ModuleType, SimpleNamespace

import pytest

from polyfleet.backends import library_probe
from polyfleet.backends.host import Host, ToolResult
from polyfleet.backends.reading import ProbeResult


def fake_nvml() -> ModuleType:
    """Exactly the calls that the probe may make, on two cards listed against PCI order; the second withholds power."""
    nvml = ModuleType("pynvml")
    cards = [("00000000:2A:00.0", b"Tesla T4", (7, 5)), ("00000000:18:00.0", "NVIDIA H100 80GB HBM3", (9, 0))]

    class NVMLError(Exception):
        pass

    def power(card: int) -> int:
        if card == 0:
            raise NVMLError("Not Supported")
        return 112300

    vars(nvml).update(
        NVMLError=NVMLError,
        NVML_TEMPERATURE_GPU=0,
        NVML_MEMORY_ERROR_TYPE_UNCORRECTED=1,
        NVML_VOLATILE_ECC=0,
        NVML_CLOCK_SM=1,
        nvmlInit=lambda: None,
        nvmlSystemGetDriverVersion=lambda: "570.86.10",
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetPciInfo=lambda card: SimpleNamespace(busId=cards[card][0]),
        nvmlDeviceGetName=lambda card: cards[card][1],
        nvmlDeviceGetUUID=lambda card: f"GPU-{card}",
        nvmlDeviceGetMemoryInfo=lambda card: SimpleNamespace(total=80 * 2**30, used=2**30, free=79 * 2**30),
        nvmlDeviceGetCudaComputeCapability=lambda card: cards[card][2],
        nvmlDeviceGetUtilizationRates=lambda card: SimpleNamespace(gpu=50, memory=10),
        nvmlDeviceGetTotalEccErrors=lambda card, kind, counter: 0,
        nvmlDeviceGetTemperature=lambda card, sensor: 41,
        nvmlDeviceGetPowerUsage=power,
        nvmlDeviceGetClockInfo=lambda card, clock: {1: 345}[clock],
    )
    return nvml


def fake_amdsmi() -> ModuleType:
    """Exactly the calls that the probe may make, on two cards listed against PCI order."""
    smi = ModuleType("amdsmi")
    kind = SimpleNamespace(EDGE=0, HOTSPOT=1)
    vars(smi).update(
        AmdSmiTemperatureType=kind,
        AmdSmiTemperatureMetric=SimpleNamespace(CURRENT=0),
        amdsmi_init=lambda: None,
        amdsmi_get_processor_handles=lambda: ["b", "a"],
        amdsmi_get_gpu_device_bdf=lambda handle: {"a": "0000:05:00.0", "b": "0000:26:00.0"}[handle],
        amdsmi_get_gpu_asic_info=lambda handle: {
            "market_name": "AMD Instinct MI300X OAM",
            "asic_serial": "0x0CEE36DDC4255115",
            "target_graphics_version": "gfx942",
        },
        amdsmi_get_gpu_vram_usage=lambda handle: {"vram_total": 196592, "vram_used": 283},
        amdsmi_get_power_info=lambda handle: {"current_socket_power": "N/A", "average_socket_power": 92},
        amdsmi_get_gpu_total_ecc_count=lambda handle: {"uncorrectable_count": 2 if handle == "b" else 0},
        amdsmi_get_temp_metric=lambda handle, sensor, metric: "N/A" if sensor == kind.HOTSPOT else 45,
        amdsmi_get_gpu_driver_info=lambda handle: {"driver_version": "6.10.5"},
        amdsmi_get_gpu_activity=lambda handle: {"gfx_activity": 100},
    )
    return smi


def probed(monkeypatch: pytest.MonkeyPatch) -> ProbeResult:
    """What the probe's process prints, read back."""
    printed: list[str] = []
    monkeypatch.setattr("builtins.print", printed.append)
    library_probe.main("nvml")
    return library_probe.probe_library(Host(run=lambda command, timeout: ToolResult(printed[0])), "nvml")

"""Vendor libraries are called in a child process only: `python -m polyfleet.backends.library_probe nvml` prints JSON.

A library that hangs or crashes takes the child with it, and the parent says so. No torch, no device context.
"""

import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from polyfleet.backends.host import TOOL_TIMEOUT_SECONDS, Host
from polyfleet.backends.protocol import DeviceStrain, Health
from polyfleet.backends.reading import (
    PRIVILEGE,
    DeviceReading,
    ProbeResult,
    count,
    mebibytes,
    number,
    part_of,
    pci_address,
    scaled,
)
from polyfleet.backends.strain import amdsmi_strain, nvml_strain

WITHHELD = re.compile(r"not.?supported|not.?(yet.?)?implemented|not.found|no.?data", re.I)
MODULES = {"nvml": "pynvml", "amdsmi": "amdsmi", "wgpu": "wgpu"}


def probe_library(host: Host, library: str) -> ProbeResult:
    """Run one library's probe in a child with a time limit."""
    command = (sys.executable, "-m", "polyfleet.backends.library_probe", library)
    result = host.run(command, TOOL_TIMEOUT_SECONDS)
    if result.problem:
        return ProbeResult(problem=result.problem.replace(sys.executable, f"the {library} library"))
    try:
        answer = json.loads(next(line for line in reversed(result.output.splitlines()) if line.startswith("{")))
        if "absent" in answer:
            return ProbeResult(problem=answer["absent"], absent=True)
        readings = (_from_json(each) for each in answer["devices"])
        problem = answer.get("problem", "")
        return ProbeResult(tuple(readings), problem, absent=PRIVILEGE.search(problem) is not None)
    except (ValueError, StopIteration, KeyError, TypeError):
        return ProbeResult(
            problem=f"the {library} library's probe printed no answer (exit status {result.exit_status})"
        )


def _from_json(each: dict[str, Any]) -> DeviceReading:
    partitions = tuple(_from_json(part) for part in each.get("partitions", ()))
    strain = each["strain"]
    reasons = strain["throttle_reasons"]
    told = DeviceStrain(**{**strain, "throttle_reasons": None if reasons is None else tuple(reasons)})
    return DeviceReading(**{**each, "health": Health(each["health"]), "partitions": partitions, "strain": told})


def read_nvml(nvml: Any) -> list[DeviceReading]:
    """Every device through pynvml (distribution nvidia-ml-py), in PCI order."""
    nvml.nvmlInit()
    driver = _text(nvml.nvmlSystemGetDriverVersion())
    return _one_by_one(range(nvml.nvmlDeviceGetCount()), lambda index: _nvml_reading(nvml, index, driver))


def _one_by_one(handles: Iterable[Any], read: Callable[[Any], DeviceReading]) -> list[DeviceReading]:
    """Readings in PCI order. A device that can't be read is unhealthy and keeps its place; its neighbours are not it.

    Raises the first error when none can be read.
    """
    readings: list[DeviceReading] = []
    errors: list[Exception] = []
    for handle in handles:
        try:
            readings.append(read(handle))
        except Exception as error:  # the library's own classes
            errors.append(error)
            health = Health.UNKNOWN if PRIVILEGE.search(str(error)) else Health.UNHEALTHY
            readings.append(DeviceReading(index=0, health=health, reason=str(error) or type(error).__name__))
    if errors and len(errors) == len(readings):
        raise errors[0]
    if not errors:
        readings.sort(key=lambda each: each.pci_bus_id or "")
    return [replace(each, index=index) for index, each in enumerate(readings)]


def _ask(call: Callable[[], Any]) -> Any:
    """A call's result, None where this card or driver has none or withholds it; other errors are raised."""
    try:
        return call()
    except Exception as error:  # the library's own classes
        if WITHHELD.search(str(error)) or PRIVILEGE.search(str(error)):
            return None
        raise


def _nvml_reading(nvml: Any, index: int, driver: str) -> DeviceReading:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    capability = _ask(lambda: nvml.nvmlDeviceGetCudaComputeCapability(handle))
    utilization = _ask(lambda: nvml.nvmlDeviceGetUtilizationRates(handle))
    uncorrected = (nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC)
    errors = _ask(lambda: nvml.nvmlDeviceGetTotalEccErrors(handle, *uncorrected))
    reading = DeviceReading(
        index=index,
        name=_text(nvml.nvmlDeviceGetName(handle)),
        architecture="sm_{}{}".format(*capability) if capability else "",
        uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
        pci_bus_id=pci_address(_text(nvml.nvmlDeviceGetPciInfo(handle).busId)),
        driver_version=driver,
        temperature_celsius=_ask(lambda: float(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))),
        power_watts=_ask(lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000),
        utilization_ratio=utilization.gpu / 100 if utilization else None,
        errors_total=errors,
        clock_hertz=_ask(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM) * 1e6),
        health=Health.UNHEALTHY if errors else Health.HEALTHY,
        reason=f"{errors} uncorrected ECC errors" if errors else "",
        strain=nvml_strain(nvml, handle),
    )
    reading = _with_nvml_memory(nvml, handle, reading)
    return replace(reading, partitions=tuple(_mig_readings(nvml, handle, reading)))


def _with_nvml_memory(nvml: Any, handle: Any, reading: DeviceReading) -> DeviceReading:
    """A card whose memory is the host's (GB10) has none to tell."""
    memory = _ask(lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
    if memory is None:
        return reading
    return replace(reading, memory_total_bytes=int(memory.total), memory_used_bytes=int(memory.used))


def _mig_readings(nvml: Any, handle: Any, whole: DeviceReading) -> Iterator[DeviceReading]:
    """The card's MIG devices that this process may see; older bindings know of none."""
    count_of = getattr(nvml, "nvmlDeviceGetMaxMigDeviceCount", None)
    for index in range(_ask(lambda: count_of(handle)) or 0 if count_of else 0):
        part = _ask(partial(nvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, index))
        uuid = part and _ask(partial(nvml.nvmlDeviceGetUUID, part))
        if uuid:
            name = _ask(partial(nvml.nvmlDeviceGetName, part))
            found = part_of(whole, "MIG", _text(uuid))
            yield _with_nvml_memory(nvml, part, replace(found, name=_text(name)) if name else found)


def read_amdsmi(smi: Any) -> list[DeviceReading]:
    """Every device through amdsmi, in PCI order; "N/A" and all-ones are withheld readings."""
    smi.amdsmi_init()
    return _one_by_one(smi.amdsmi_get_processor_handles(), lambda handle: _amdsmi_reading(smi, handle))


def _amdsmi_reading(smi: Any, handle: Any) -> DeviceReading:
    asic = _ask(lambda: smi.amdsmi_get_gpu_asic_info(handle)) or {}
    driver = _ask(lambda: smi.amdsmi_get_gpu_driver_info(handle)) or {}
    memory = _ask(lambda: smi.amdsmi_get_gpu_vram_usage(handle)) or {}
    power = _ask(lambda: smi.amdsmi_get_power_info(handle)) or {}
    watts = number(power.get("current_socket_power"))
    errors = count((_ask(lambda: smi.amdsmi_get_gpu_total_ecc_count(handle)) or {}).get("uncorrectable_count"))
    activity = _ask(lambda: smi.amdsmi_get_gpu_activity(handle)) or {}
    kind = smi.AmdSmiTemperatureType
    sensors = (getattr(kind, name) for name in ("HOTSPOT", "EDGE", "JUNCTION") if hasattr(kind, name))
    current = smi.AmdSmiTemperatureMetric.CURRENT
    heat = (number(_ask(partial(smi.amdsmi_get_temp_metric, handle, sensor, current))) for sensor in sensors)
    serial = str(asic.get("asic_serial", "")).lower().removeprefix("0x")
    return DeviceReading(
        index=0,
        name=str(asic.get("market_name", "")),
        architecture=str(asic.get("target_graphics_version", "")),
        uuid=f"GPU-{serial}" if serial else None,
        pci_bus_id=pci_address(smi.amdsmi_get_gpu_device_bdf(handle)),
        driver_version=str(driver["driver_version"]) if "driver_version" in driver else None,
        memory_total_bytes=mebibytes(memory.get("vram_total", "")),
        memory_used_bytes=mebibytes(memory.get("vram_used", "")),
        temperature_celsius=next((value for value in heat if value is not None), None),
        power_watts=watts if watts is not None else number(power.get("average_socket_power")),
        utilization_ratio=scaled(activity.get("gfx_activity"), 0.01),
        errors_total=errors,
        health=Health.UNHEALTHY if errors else Health.HEALTHY,
        reason=f"{errors} uncorrectable errors" if errors else "",
        strain=amdsmi_strain(smi, handle),
    )


def read_wgpu(wgpu: Any) -> list[DeviceReading]:
    """Every Vulkan adapter; one card seen through two drivers counts once."""
    adapters = [each.info for each in wgpu.gpu.enumerate_adapters_sync() if each.info["backend_type"] == "Vulkan"]
    distinct = {(each["vendor_id"], each["device_id"], each["device"]): each for each in adapters}
    return [
        DeviceReading(
            index=index,
            name=str(each["device"]),
            architecture="software" if each["adapter_type"] == "CPU" else str(each["adapter_type"]),
            driver_version=str(each["description"]) or None,
            health=Health.UNKNOWN,
            reason="Vulkan gives no readings",
        )
        for index, each in enumerate(distinct.values())
    ]


READERS: dict[str, Callable[[Any], list[DeviceReading]]] = {
    "nvml": read_nvml,
    "amdsmi": read_amdsmi,
    "wgpu": read_wgpu,
}


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def main(library: str) -> None:
    """Print `{"devices": [...]}`, `{"absent": why}` or `{"devices": [], "problem": why}`."""
    try:
        module = __import__(MODULES[library])
    except (ImportError, OSError, KeyError) as error:  # amdsmi raises the latter two without its shared library
        print(json.dumps({"absent": f"{MODULES[library]} can't be loaded: {error}"}))
        return
    try:
        print(json.dumps({"devices": [asdict(each) for each in READERS[library](module)]}))
    except Exception as error:  # the library's own error classes: whatever it is, the devices can't be trusted
        print(json.dumps({"devices": [], "problem": f"{library}: {error or type(error).__name__}"}))


if __name__ == "__main__":
    main(sys.argv[1])

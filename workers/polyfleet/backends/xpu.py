"""Intel XPU: xpu-smi of either major version for facts and readings, torch.xpu for running."""

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from polyfleet.backends.accelerator import AcceleratorBackend, Collectives
from polyfleet.backends.host import TOOL_TIMEOUT_SECONDS, ToolResult
from polyfleet.backends.protocol import BackendType, DeviceInfo, DeviceStrain, Health, KernelCapabilities, MemoryInfo
from polyfleet.backends.reading import (
    DeviceReading,
    ProbeResult,
    count,
    mebibytes,
    number,
    pci_address,
    scaled,
    unusable,
    without_devices,
)
from polyfleet.backends.registry import BackendRegistry
from polyfleet.backends.torch_build import TorchBuild, installed

TILE = re.compile(r"Tile \d+:\s*([^;]+)")


@BackendRegistry.register(BackendType.XPU)
class XpuBackend(AcceleratorBackend):
    """Intel GPUs under an XPU build of torch."""

    type = BackendType.XPU
    vendor = "Intel GPU"
    pci_vendor = "0x8086"
    pci_classes = ("0x03",)  # Intel's id stands on bridges and network cards too
    torch_name = "xpu"
    visible_variable = "ZE_AFFINITY_MASK"
    # Torch's parser of the mask takes integers only and no tile syntax, so tiles are devices.
    settings: ClassVar[Mapping[str, str]] = {"ZE_FLAT_DEVICE_HIERARCHY": "FLAT"}
    graph_class = "XPUGraph"
    collectives: ClassVar[Collectives] = Collectives("xccl", "oneCCL")

    def present(self) -> bool:
        """A display-class function and its render node."""
        return super().present() and self._host.exists("dev/dri/renderD*")

    def missing_software(self, build: TorchBuild) -> str:
        """An XPU build of torch."""
        if not build.version:
            return "an Intel GPU is present, but torch is not installed: install an XPU build of torch"
        if build.xpu is None:
            return f"an Intel GPU is present, but torch {build.version} has no XPU support: install an XPU build"
        return ""

    def probe(self) -> ProbeResult:
        """xpu-smi's table (version 2), or its discovery and per-device statistics (version 1)."""
        table = self._run()
        if table.problem:
            return unusable(table)
        if "XPU-SMI v2" in table.output:
            return parse_table(table.output)
        discovery = self._run("discovery", "-j")
        if discovery.problem:
            return unusable(discovery)
        found = parse_discovery(discovery.output)
        if not found.readings:
            return without_devices("xpu-smi", discovery, found.problem)
        readings = []
        for each in found.readings:
            stats = self._run("stats", "-d", str(each.index))
            if stats.problem:
                return unusable(stats)
            readings.append(replace_stats(each, stats.output))
        return replace(found, readings=tuple(readings))

    def capabilities(self, device: DeviceInfo) -> KernelCapabilities:
        """Arc A computes bf16 inaccurately, so fp16 there; fp64 on Max, Arc B and Lunar Lake only."""
        name = device.name
        modern = "Max" in name or re.search(r"Arc\(TM\) (Pro )?B\d", name) is not None
        dtypes = {"float32", "float16", "bfloat16", "int8"} | ({"float64"} if modern else set())
        return KernelCapabilities(
            dtypes=frozenset(dtypes),
            preferred_dtype="bfloat16" if modern else "float16",
            graph_capture=self.can_capture(),
            streams=True,
            triton=installed("triton"),
            flash_attention=installed("vllm_xpu_kernels"),
            block_sizes=(16, 64, 128),
        )

    def memory(self, index: int = 0) -> MemoryInfo:
        """Some devices can't be asked for what is free (torch raises RuntimeError): what this process left, then."""
        try:
            return super().memory(index)
        except RuntimeError as error:
            if "support" not in str(error):
                raise
        total = int(self._module().get_device_properties(index).total_memory)
        return MemoryInfo(total - int(self._module().memory_reserved(index)), total)

    def _run(self, *arguments: str) -> ToolResult:
        return self._host.run(("xpu-smi", *arguments), TOOL_TIMEOUT_SECONDS)


def parse_table(text: str) -> ProbeResult:
    """The default table of version 2: two physical rows a device."""
    driver = re.search(r"Driver:\s*(\S+)", text)
    pairs: list[tuple[list[str], list[str]]] = []
    for line in text.partition("Processes:")[0].splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) == 3 and re.match(r"\d+\s+\S", cells[0]):
            pairs.append((cells, ["", "", ""]))  # a second row may be missing
        elif len(cells) == 3 and pairs:
            pairs[-1] = pairs[-1][0], cells
    version = driver.group(1) if driver else None
    readings = tuple(_table_reading(index, *pair, version) for index, pair in enumerate(pairs))
    return ProbeResult(readings, problem="" if readings else "xpu-smi lists no device")


def _table_reading(index: int, upper: list[str], lower: list[str], driver: str | None) -> DeviceReading:
    name = re.sub(r"\s+(On|Off)$", "", upper[0].split(maxsplit=1)[1])
    sensors = re.search(r"\s(\S+?)C\s+(\S+?)W?\s*/", lower[0])
    used, _, total = lower[1].partition("/")
    errors = count(upper[2])
    return DeviceReading(
        index=index,
        name=name,
        architecture=architecture_of(name),
        pci_bus_id=pci_address(upper[1]),
        driver_version=driver,
        temperature_celsius=number(sensors.group(1)) if sensors else None,
        power_watts=number(sensors.group(2)) if sensors else None,
        memory_used_bytes=mebibytes(used),
        memory_total_bytes=mebibytes(total),
        utilization_ratio=scaled(lower[2].partition(" ")[0], 0.01),
        errors_total=errors,
        health=Health.UNHEALTHY if errors else Health.HEALTHY,
        reason=f"{errors} uncorrected ECC errors" if errors else "",
    )


def parse_discovery(text: str) -> ProbeResult:
    """`xpu-smi discovery -j` of version 1."""
    try:
        devices: list[dict[str, Any]] = json.loads(text)["device_list"]
        ordered = sorted(devices, key=lambda each: str(each.get("pci_bdf_address")))
        readings = tuple(_discovered(index, each) for index, each in enumerate(ordered))
    except (ValueError, KeyError, TypeError, AttributeError):
        return ProbeResult(problem="xpu-smi discovery printed no list of devices")
    return ProbeResult(readings, problem="" if readings else "xpu-smi lists no device")


def _discovered(index: int, device: dict[str, Any]) -> DeviceReading:
    name = str(device.get("device_name") or "")
    return DeviceReading(
        index=index,
        name=name,
        architecture=architecture_of(name),
        uuid=device.get("uuid"),
        pci_bus_id=pci_address(str(device.get("pci_bdf_address"))),
    )


def replace_stats(reading: DeviceReading, text: str) -> DeviceReading:
    """Add `xpu-smi stats`: `| name | value |` rows; a cell may hold one value a tile, and is empty when withheld."""
    rows = re.findall(r"^\|\s*(\S[^|]*?)\s*\|\s*([^|]*?)\s*\|\s*$", text, re.MULTILINE)
    values = {name: [number(tile) for tile in TILE.findall(cell) or [cell]] for name, cell in rows}

    def known(name: str) -> list[float]:
        return [value for value in values.get(name, []) if value is not None]

    power, memory = known("GPU Power (W)"), known("GPU Memory Used (MiB)")
    heat, clock = known("GPU Core Temperature (C)"), known("GPU Frequency (MHz)")
    load, errors = known("GPU Utilization (%)"), known("Mem Errors Uncorrectable")
    num_errors = int(sum(errors)) if errors else None
    corrected = known("Mem Errors Correctable")
    return replace(
        reading,
        power_watts=sum(power) if power else None,
        memory_used_bytes=mebibytes(sum(memory)) if memory else None,
        temperature_celsius=max(heat) if heat else None,
        clock_hertz=max(clock) * 1e6 if clock else None,
        utilization_ratio=sum(load) / len(load) / 100 if load else None,
        errors_total=num_errors,
        health=Health.UNHEALTHY if num_errors else Health.HEALTHY,
        reason=f"{num_errors} uncorrectable memory errors" if num_errors else "",
        strain=DeviceStrain(corrected_errors_total=int(sum(corrected)) if corrected else None),
    )


def architecture_of(name: str) -> str:
    """The generation in a product name: "Arc A", "Arc B", "Max"; "Xe" when the name tells nothing."""
    found = re.search(r"Arc\(TM\) (?:Pro )?([AB])\d", name)
    return f"arc-{found.group(1).lower()}" if found else "max" if "Max" in name else "xe"

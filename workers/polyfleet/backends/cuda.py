"""NVIDIA CUDA: NVML or nvidia-smi's query form for facts and readings, torch.cuda for running."""

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from polyfleet.backends.accelerator import AcceleratorBackend, Collectives, first_answer
from polyfleet.backends.host import TOOL_TIMEOUT_SECONDS, ToolResult
from polyfleet.backends.library_probe import probe_library
from polyfleet.backends.protocol import NO_STRAIN, BackendType, DeviceInfo, DeviceStrain, Health, KernelCapabilities
from polyfleet.backends.reading import (
    DeviceReading,
    ProbeResult,
    count,
    mebibytes,
    number,
    part_of,
    pci_address,
    quoted,
    scaled,
    unusable,
    without_devices,
)
from polyfleet.backends.registry import BackendRegistry
from polyfleet.backends.strain import throttle_reasons
from polyfleet.backends.torch_build import TorchBuild, installed

NAMING = ("index", "uuid", "name", "pci.bus_id")
QUERY = (
    *NAMING,
    "memory.total",
    "memory.used",
    "temperature.gpu",
    "power.draw",
    "utilization.gpu",
    "ecc.errors.uncorrected.volatile.total",
    "clocks.sm",
    "driver_version",
    "compute_cap",  # from driver 510 on
)
GONE = "[GPU is lost]"
OUT_OF_REACH = re.compile(r"Unable to determine the device handle for GPU ?([0-9A-Fa-f:]+\.[0-7])")
STRAIN_QUERY = (
    "pci.bus_id",
    "ecc.errors.corrected.volatile.total",
    "clocks_throttle_reasons.active",
    "pcie.link.gen.current",
    "pcie.link.width.current",
    "pcie.link.width.max",
)


@BackendRegistry.register(BackendType.CUDA)
class CudaBackend(AcceleratorBackend):
    """NVIDIA devices under a CUDA build of torch."""

    type = BackendType.CUDA
    vendor = "NVIDIA"
    pci_vendor = "0x10de"
    pci_classes = ("0x03", "0x12")
    torch_name = "cuda"
    visible_variable = "CUDA_VISIBLE_DEVICES"
    # PCI order makes indices mean the same to the driver, the tools and torch.
    settings: ClassVar[Mapping[str, str]] = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    graph_class = "CUDAGraph"
    collectives: ClassVar[Collectives] = Collectives("nccl", "NCCL")
    fault_command: ClassVar[tuple[str, ...]] = (sys.executable, "-m", "polyfleet.backends.fault_events")

    def present(self) -> bool:
        """By PCI or, where sysfs is hidden (some containers, WSL), by the device node."""
        return super().present() or self._host.exists("dev/nvidia[0-9]*")

    def missing_software(self, build: TorchBuild) -> str:
        """A CUDA build of torch."""
        if not build.version:
            return "an NVIDIA device is present, but torch is not installed: install a CUDA build of torch"
        if build.cuda is None:
            kind = "a ROCm" if build.hip else "an XPU" if build.xpu else "a CPU"
            return f"an NVIDIA device is present, but torch {build.version} is {kind} build: install a CUDA build"
        return ""

    def probe(self) -> ProbeResult:
        """NVML where pynvml is installed, else `nvidia-smi --query-gpu`."""
        return first_answer(lambda: probe_library(self._host, "nvml"), self._query_tool)

    def probe_closely(self) -> ProbeResult:
        """As probe; where NVML told nothing of strain, `nvidia-smi` is asked by a call of its own."""
        found = self.probe()
        if found.problem or any(each.strain != NO_STRAIN for each in found.readings):
            return found
        return with_strain(found, self._query(STRAIN_QUERY))

    def _query_tool(self) -> ProbeResult:
        return self._with_partitions(self._queried())

    def _with_partitions(self, found: ProbeResult) -> ProbeResult:
        """`nvidia-smi -L` names MIG devices, and is asked only where one is chosen."""
        if "MIG-" not in self._host.environ.get(self.visible_variable, ""):
            return found
        return parse_list(self._host.run(("nvidia-smi", "-L"), TOOL_TIMEOUT_SECONDS), found)

    def _queried(self) -> ProbeResult:
        fields: tuple[str, ...] = QUERY
        while True:  # a driver names one field that it does not know at a time
            result = self._query(fields)
            refused = re.search(r'"([^"]+)" is not a valid field', result.output)
            if refused is None or refused[1] not in fields[len(NAMING) :]:
                return parse_query(result, fields)
            fields = tuple(each for each in fields if each != refused[1])

    def capabilities(self, device: DeviceInfo) -> KernelCapabilities:
        """By compute capability: fp16 from 6.0, bf16 from 8.0, fp8 from 8.9, int8 dot products from 6.1."""
        capability = compute_capability(device)
        dtypes = {"float32", "float64"}
        dtypes |= {"float16"} if capability >= (6, 0) else set()
        dtypes |= {"int8"} if capability >= (6, 1) else set()
        dtypes |= {"bfloat16"} if capability >= (8, 0) else set()
        dtypes |= {"float8_e4m3fn", "float8_e5m2"} if capability >= (8, 9) else set()
        preferred = "bfloat16" if "bfloat16" in dtypes else "float16" if capability >= (7, 0) else "float32"
        return KernelCapabilities(
            dtypes=frozenset(dtypes),
            preferred_dtype=preferred,
            graph_capture=self.can_capture(),
            streams=True,
            triton=capability >= (7, 0) and installed("triton"),
            flash_attention=capability >= (8, 0),
            peer_memory=True,
            executors=("captured", "eager"),
        )

    def _query(self, fields: Sequence[str]) -> ToolResult:
        command = ("nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits")
        return self._host.run(command, TOOL_TIMEOUT_SECONDS)


def compute_capability(device: DeviceInfo) -> tuple[int, int]:
    """(9, 0) of "sm_90"; (0, 0) when unknown."""
    digits = device.architecture.removeprefix("sm_")
    return (int(digits[:-1]), int(digits[-1])) if digits.isdecimal() and len(digits) >= 2 else (0, 0)


def parse_query(result: ToolResult, fields: Sequence[str]) -> ProbeResult:
    """Rows of `--format=csv,noheader,nounits`, sorted by PCI address so that indices are in bus order.

    A row with more or fewer cells than fields, as one with commas for points has, is a device without readings.
    One that is named among the others as out of reach keeps its place: it is lost.
    """
    if result.problem:
        return unusable(result)
    rows = [[cell.strip() for cell in line.split(",")] for line in result.output.splitlines()]
    good = [
        dict(zip(fields if len(row) == len(fields) else NAMING, row, strict=False))
        for row in rows
        if row[0].isdecimal() and len(row) >= len(NAMING)
    ]
    if not good:
        first = next(iter(result.output.strip().splitlines()), "nothing")
        return without_devices("nvidia-smi", result, f"nvidia-smi printed no device: {quoted(first)}")
    lost = [{"pci.bus_id": each, "memory.total": GONE} for each in OUT_OF_REACH.findall(result.output)]
    ordered = sorted(good + lost, key=lambda each: pci_address(each["pci.bus_id"]) or "")
    return ProbeResult(tuple(_reading(index, cells) for index, cells in enumerate(ordered)))


def with_strain(found: ProbeResult, result: ToolResult) -> ProbeResult:
    """The same devices with what STRAIN_QUERY says of each; a driver that refuses it tells nothing."""
    rows = [[cell.strip() for cell in line.split(",")] for line in result.output.splitlines()]
    by_address = {pci_address(row[0]): row[1:] for row in rows if len(row) == len(STRAIN_QUERY)}
    if result.problem or not by_address:
        return found
    readings = tuple(
        replace(each, strain=_strain(*by_address[each.pci_bus_id])) if each.pci_bus_id in by_address else each
        for each in found.readings
    )
    return replace(found, readings=readings)


def _strain(corrected: str, mask: str, generation: str, lanes: str, max_lanes: str) -> DeviceStrain:
    told = re.fullmatch(r"0x[0-9a-fA-F]+", mask)
    return DeviceStrain(
        corrected_errors_total=count(corrected),
        throttle_reasons=throttle_reasons(int(mask, 16)) if told else None,
        pcie_generation=count(generation),
        pcie_lanes=count(lanes),
        pcie_max_lanes=count(max_lanes),
    )


def parse_list(result: ToolResult, found: ProbeResult) -> ProbeResult:
    """The same devices with the MIG devices that `nvidia-smi -L` lists below each."""
    parts: dict[str, list[DeviceReading]] = {}
    whole: DeviceReading | None = None
    for line in result.output.splitlines():
        if card := re.match(r"GPU \d+:.*\(UUID: (GPU-\S+)\)", line):
            whole = next((each for each in found.readings if each.uuid == card[1]), None)
        elif (part := re.match(r"\s+(MIG \S+)\s.*\(UUID: (MIG-\S+)\)", line)) and whole:
            parts.setdefault(whole.uuid or "", []).append(part_of(whole, part[1], part[2]))
    readings = (replace(each, partitions=tuple(parts.get(each.uuid or "", ()))) for each in found.readings)
    return replace(found, readings=tuple(readings))


def _reading(index: int, given: dict[str, str]) -> DeviceReading:
    cells = dict.fromkeys(QUERY, "") | given
    errors = count(cells["ecc.errors.uncorrected.volatile.total"])
    lost = "[Unknown Error]" in cells.values() or GONE in cells.values()
    reason = "the driver has lost the device" if lost else f"{errors} uncorrected ECC errors" if errors else ""
    capability = cells["compute_cap"].replace(".", "")
    return DeviceReading(
        index=index,
        name=cells["name"],
        architecture=f"sm_{capability}" if capability.isdecimal() else "",
        uuid=cells["uuid"] or None,
        pci_bus_id=pci_address(cells["pci.bus_id"]),
        driver_version=cells["driver_version"] or None,
        memory_total_bytes=mebibytes(cells["memory.total"]),
        memory_used_bytes=mebibytes(cells["memory.used"]),
        temperature_celsius=number(cells["temperature.gpu"]),
        power_watts=number(cells["power.draw"]),
        utilization_ratio=scaled(cells["utilization.gpu"], 0.01),
        errors_total=errors,
        clock_hertz=scaled(cells["clocks.sm"], 1e6),
        health=Health.UNHEALTHY if reason else Health.HEALTHY,
        reason=reason,
    )

"""AMD ROCm: KFD topology for facts, amdsmi, amd-smi or rocm-smi for readings, torch.cuda of a HIP build for running."""

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import ClassVar

from polyfleet.backends.accelerator import AcceleratorBackend, Collectives, first_answer
from polyfleet.backends.host import TOOL_TIMEOUT_SECONDS, ToolResult
from polyfleet.backends.kfd import kfd_nodes
from polyfleet.backends.library_probe import probe_library
from polyfleet.backends.protocol import BackendType, DeviceInfo, Health, KernelCapabilities
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

MARKET_NAMES = {
    0x74A0: "AMD Instinct MI300A",
    0x74A1: "AMD Instinct MI300X",
    0x74A2: "AMD Instinct MI308X",
    0x74A5: "AMD Instinct MI325X",
    0x74B5: "AMD Instinct MI300X VF",
    0x75A0: "AMD Instinct MI350X",
    0x75A3: "AMD Instinct MI355X",
    0x7408: "AMD Instinct MI250X",
    0x740F: "AMD Instinct MI210",
    0x744C: "AMD Radeon RX 7900 XTX",
}
HYGON = 0x1D94
TABLE_TEMPERATURE = re.compile(r"(?<![\w,.])([\d.,]+)\s*°?[cC]\b")
TABLE_ROW = re.compile(rf"{TABLE_TEMPERATURE.pattern}|\bN/A\b")
TABLE_CLOCKS = re.compile(r"(\d+(?=Mhz)|N/A)(?:Mhz)?\s+\d+Mhz")  # SCLK, then MCLK


@BackendRegistry.register(BackendType.ROCM)
class RocmBackend(AcceleratorBackend):
    """AMD devices under a HIP build of torch."""

    type = BackendType.ROCM
    vendor = "AMD"
    pci_vendor = "0x1002"
    pci_classes = ("0x03", "0x12")
    torch_name = "cuda"
    visible_variable = "HIP_VISIBLE_DEVICES"
    graph_class = "CUDAGraph"
    collectives: ClassVar[Collectives] = Collectives("nccl", "RCCL")

    def present(self) -> bool:
        """By PCI and by the compute driver's node: a display-only card has no /dev/kfd."""
        return super().present() and self._host.exists("dev/kfd")

    def missing_software(self, build: TorchBuild) -> str:
        """A HIP build of torch."""
        if not build.version:
            return "an AMD device is present, but torch is not installed: install a ROCm build of torch"
        if build.hip is None:
            return f"an AMD device is present, but torch {build.version} has no HIP: install a ROCm build"
        return ""

    def probe(self) -> ProbeResult:
        """amdsmi, else amd-smi, else rocm-smi for readings, joined with the topology's facts by PCI address."""
        found = first_answer(
            lambda: probe_library(self._host, "amdsmi"),
            lambda: parse_amd_smi(self._host.run(("amd-smi",), TOOL_TIMEOUT_SECONDS)),
            lambda: parse_rocm_smi(self._host.run(("rocm-smi",), TOOL_TIMEOUT_SECONDS)),
        )
        return self._with_facts(found)

    def environment(self, indices: Sequence[int]) -> dict[str, str]:
        """HIP's and CUDA's variables must be equal; ROCR's would be applied before both."""
        chosen = super().environment(indices)
        return {**chosen, "CUDA_VISIBLE_DEVICES": chosen[self.visible_variable]}

    def capabilities(self, device: DeviceInfo) -> KernelCapabilities:
        """By gfx generation; NVIDIA's thresholds mean nothing here."""
        gfx = device.architecture.partition(":")[0]
        matrix_cores = gfx.startswith(("gfx90a", "gfx94", "gfx95", "gfx11", "gfx12"))
        dtypes = {"float32", "float64", "float16", "int8"} | ({"bfloat16"} if matrix_cores else set())
        if gfx.startswith("gfx94"):
            dtypes |= {"float8_e4m3fnuz", "float8_e5m2fnuz"}
        elif gfx.startswith(("gfx95", "gfx12")):
            dtypes |= {"float8_e4m3fn"}
        return KernelCapabilities(
            dtypes=frozenset(dtypes),
            preferred_dtype="bfloat16" if matrix_cores else "float16",
            graph_capture=self.can_capture(),
            streams=True,
            triton=matrix_cores and installed("triton"),
            flash_attention=matrix_cores,
            executors=("captured", "eager"),
        )

    def _with_facts(self, found: ProbeResult) -> ProbeResult:
        nodes = kfd_nodes(self._host, 0x1002)
        if not nodes and kfd_nodes(self._host, HYGON):  # AMD's card here is for display; the tools list Hygon's
            return ProbeResult(problem="the compute devices of this machine are Hygon's, not AMD's")
        if (found.problem and not found.absent) or not nodes:
            return found
        by_address = {each.pci_bus_id: each for each in found.readings if each.pci_bus_id}
        readings = []
        for index, node in enumerate(nodes):
            listed = by_address.get(node.pci_bus_id)
            if listed is None and not by_address and index < len(found.readings):
                listed = found.readings[index]
            unlisted = found.problem or "its tool does not list it"  # unknown only: a partition is no card of its own
            reading = listed or DeviceReading(index=index, health=Health.UNKNOWN, reason=unlisted)
            readings.append(
                replace(
                    reading,
                    index=index,
                    name=reading.name or MARKET_NAMES.get(node.device_id, f"AMD device 0x{node.device_id:04x}"),
                    architecture=node.architecture,
                    uuid=reading.uuid or node.unique_id or None,
                    pci_bus_id=node.pci_bus_id,
                    cores=node.compute_units,
                    memory_total_bytes=reading.memory_total_bytes or node.memory_bytes or None,
                    driver_version=reading.driver_version or self._host.read("sys/module/amdgpu/version") or None,
                )
            )
        return ProbeResult(tuple(readings), warnings=found.warnings)


def parse_amd_smi(result: ToolResult) -> ProbeResult:
    """The default table of amd-smi (ROCm 7): two rows a device, the first with its PCI address."""
    if result.problem:
        return unusable(result)
    rows = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in result.output.splitlines()]
    version = re.search(r"amdgpu version:\s*(\S+)", result.output)
    readings: list[DeviceReading] = []
    for upper, lower in pairwise(rows):
        address = pci_address(upper[0]) if len(upper) == 2 and len(lower) == 2 else None
        if address is not None:
            driver = version.group(1) if version else None
            readings.append(_amd_smi_reading(len(readings), address, upper, lower, driver))
    if not readings:
        found = without_devices("amd-smi", result, "amd-smi printed no device")
        return replace(found, absent=found.absent or "AMD-SMI" not in result.output)
    return ProbeResult(tuple(readings))


def _amd_smi_reading(index: int, address: str, upper: list[str], lower: list[str], driver: str | None) -> DeviceReading:
    name = upper[0].partition(" ")[2].strip()
    sensors = re.match(r"(\S+)\s*%?\s+(\S+)(?:\s*°C)?\s+(\S+)\s+(\S+?)/(\S+)\s*W", upper[1])
    usage = re.match(r"(\S+)\s*%?\s+\S+\s*%?\s+(\S+?)/(\S+)", lower[1])
    errors = count(sensors.group(3)) if sensors else None
    return DeviceReading(
        index=index,
        name=name,
        pci_bus_id=address,
        driver_version=driver,
        temperature_celsius=number(sensors.group(2)) if sensors else None,
        power_watts=number(sensors.group(4)) if sensors else None,
        errors_total=errors,
        utilization_ratio=scaled(usage.group(1), 0.01) if usage else None,
        memory_used_bytes=mebibytes(usage.group(2)) if usage else None,
        memory_total_bytes=mebibytes(usage.group(3)) if usage else None,
        health=Health.UNHEALTHY if errors else Health.HEALTHY,
        reason=f"{errors} uncorrectable errors" if errors else "",
    )


def parse_rocm_smi(result: ToolResult) -> ProbeResult:
    """The concise table of every rocm-smi generation, read from both ends of a row; its exit status means nothing."""
    if result.problem:
        return unusable(result)
    if re.search(r"\b[DH]CU%", result.output):
        return ProbeResult(problem="this rocm-smi is Hygon's (its table counts DCU or HCU)", absent=True)
    rows = [line for line in result.output.splitlines() if re.match(r"\d+\s", line) and TABLE_ROW.search(line)]
    if not rows:
        listed = "lists no device" if "ROCm System Management" in result.output else "printed no table of AMD's"
        return without_devices("rocm-smi", result, f"rocm-smi {listed}")
    return ProbeResult(tuple(_rocm_smi_reading(index, row) for index, row in enumerate(rows)))


def _rocm_smi_reading(index: int, row: str) -> DeviceReading:
    temperature = TABLE_TEMPERATURE.search(row)
    power = [*row[temperature.end() :].split(), ""][0] if temperature else ""
    clock = TABLE_CLOCKS.search(row)
    return DeviceReading(
        index=index,
        temperature_celsius=number(temperature.group(1)) if temperature else None,
        power_watts=number(power),
        clock_hertz=scaled(clock.group(1), 1e6) if clock else None,
        utilization_ratio=scaled(row.split()[-1], 0.01),
    )

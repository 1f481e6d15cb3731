"""Hygon DCU (HCU): hy-smi for readings, KFD topology for facts, torch.cuda of the vendor's HIP build for running."""

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

from polyfleet.backends.accelerator import AcceleratorBackend, Collectives
from polyfleet.backends.host import TOOL_TIMEOUT_SECONDS, ToolResult
from polyfleet.backends.kfd import kfd_nodes
from polyfleet.backends.protocol import BackendType, DeviceInfo, KernelCapabilities
from polyfleet.backends.reading import (
    DeviceReading,
    ProbeResult,
    mebibytes,
    number,
    pci_address,
    scaled,
    unusable,
    without_devices,
)
from polyfleet.backends.registry import BackendRegistry
from polyfleet.backends.torch_build import TorchBuild, installed

# The vendor string and series of hy-smi don't name the model; the PCI device id does.
MODELS = {
    "0x55b7": ("Z100L", "gfx906"),
    "0x6210": ("K100_AI", "gfx928"),
    "0x6211": ("K100_LC_E_AI", "gfx928"),
    "0x6212": ("K100_LC_AI", "gfx928"),
    "0x6213": ("K100_AI_i", "gfx928"),
    "0x62b7": ("K100", "gfx926"),
    "0x62c7": ("K100-LC", "gfx926"),
    "0x6310": ("BW200", "gfx936"),
    "0x631a": ("BW1000_H", "gfx936"),
    "0x6320": ("BW150", "gfx936"),
    "0x6370": ("BW100", "gfx936"),
    "0x6430": ("BW1100", "gfx938"),
    "0x6431": ("BW1000_LC", "gfx936"),
}
TOOL = "hy-smi"


@BackendRegistry.register(BackendType.HYGON)
class HygonBackend(AcceleratorBackend):
    """Hygon devices; torch calls them cuda under HIP, so they are told from AMD's by PCI vendor."""

    type = BackendType.HYGON
    vendor = "Hygon"
    pci_vendor = "0x1d94"
    pci_classes = ("0x03", "0x0b", "0x12")  # Hygon's id stands on its CPUs' bridges and engines too
    torch_name = "cuda"
    visible_variable = "HIP_VISIBLE_DEVICES"
    graph_class = "CUDAGraph"
    collectives: ClassVar[Collectives] = Collectives("nccl", "RCCL")

    def missing_software(self, build: TorchBuild) -> str:
        """The vendor's HIP build of torch."""
        if not build.version or build.hip is None:
            return "a Hygon device is present, but this torch has no HIP: use the vendor's DTK image and its torch"
        return ""

    def probe(self) -> ProbeResult:
        """hy-smi's table for readings and its JSON for memory and addresses, joined with files' facts."""
        found = parse_table(self._run())
        if not found.readings:
            return found
        memory, bus = self._run("--showmeminfo", "vram", "--json"), self._run("--showbus", "--json")
        if hung := memory.problem or bus.problem:
            return ProbeResult(problem=hung)
        cards = parse_cards(memory, bus)
        return ProbeResult(tuple(self._complete(each, cards.get(each.index)) for each in found.readings))

    def environment(self, indices: Sequence[int]) -> dict[str, str]:
        """HIP's and CUDA's variables must be equal."""
        chosen = super().environment(indices)
        return {**chosen, "CUDA_VISIBLE_DEVICES": chosen[self.visible_variable]}

    def capabilities(self, device: DeviceInfo) -> KernelCapabilities:
        """bf16 from gfx928, fp8 on gfx938 only; Triton is the vendor's own build."""
        gfx = device.architecture.partition(":")[0]
        matrix_cores = gfx in ("gfx928", "gfx936", "gfx938")
        dtypes = {"float32", "float64", "float16", "int8"} | ({"bfloat16"} if matrix_cores else set())
        dtypes |= {"float8_e4m3fn"} if gfx == "gfx938" else set()
        return KernelCapabilities(
            dtypes=frozenset(dtypes),
            preferred_dtype="bfloat16" if matrix_cores else "float16",
            graph_capture=self.can_capture(),
            streams=True,
            triton=matrix_cores and installed("triton"),
            flash_attention=matrix_cores,
            block_sizes=(16, 64, 128),
        )

    def _run(self, *arguments: str) -> ToolResult:
        return self._host.run((TOOL, *arguments), TOOL_TIMEOUT_SECONDS)

    def _complete(self, reading: DeviceReading, card: DeviceReading | None) -> DeviceReading:
        listed = self.pci_functions()
        address = (card.pci_bus_id if card else None) or (
            listed[reading.index].address if reading.index < len(listed) else None
        )
        device_id = next((each.device for each in listed if each.address == address), "")
        model, architecture = MODELS.get(device_id, (f"Hygon device {device_id or 'unknown'}", ""))
        node = next((each for each in kfd_nodes(self._host, 0x1D94) if each.pci_bus_id == address), None)
        driver = self._host.read("sys/module/hycu/version") or self._host.read("sys/module/hydcu/version")
        return replace(
            reading,
            name=model,
            architecture=node.architecture if node else architecture,
            pci_bus_id=address,
            cores=node.compute_units if node else None,
            driver_version=driver or None,
            memory_total_bytes=(card.memory_total_bytes if card else None) or (node.memory_bytes if node else None),
            memory_used_bytes=card.memory_used_bytes if card else None,
        )


def parse_table(result: ToolResult) -> ProbeResult:
    """The default table; its header names the columns (DCU% before DTK 25, HCU% since)."""
    if result.problem:
        return unusable(result)
    header: list[str] = []
    readings = []
    for line in result.output.splitlines():
        cells = line.split()
        if cells and cells[0] in ("DCU", "HCU"):
            header = cells
        elif header and cells and cells[0].isdecimal() and len(cells) >= len(header) - 1:  # Mode may be empty
            row = dict(zip(header, cells, strict=False))
            readings.append(
                DeviceReading(
                    index=int(cells[0]),
                    temperature_celsius=number(row.get("Temp", "")),
                    power_watts=number(row.get("AvgPwr", "")),
                    utilization_ratio=scaled(row.get("HCU%", row.get("DCU%", "")), 0.01),
                )
            )
    if not readings:
        problem = "lists no device" if header else "printed no table of Hygon's"
        return without_devices(TOOL, result, f"{TOOL} {problem}")
    return ProbeResult(tuple(readings))


def parse_cards(memory: ToolResult, bus: ToolResult) -> dict[int, DeviceReading]:
    """`{"card0": {...}}` of --showmeminfo and --showbus; what can't be read is left out."""
    cards: dict[int, DeviceReading] = {}
    for name, values in {**_cards(bus), **_cards(memory)}.items():
        index = int(re.sub(r"\D", "", name) or -1)
        addresses = _cards(bus).get(name, {})
        cards[index] = DeviceReading(
            index=index,
            pci_bus_id=pci_address(str(addresses.get("PCI Bus", ""))),
            memory_total_bytes=mebibytes(values.get("vram Total Memory (MiB)", "")),
            memory_used_bytes=mebibytes(values.get("vram Total Used Memory (MiB)", "")),
        )
    return cards


def _cards(result: ToolResult) -> dict[str, dict[str, Any]]:
    try:
        loaded = json.loads(result.output)
    except ValueError:
        return {}
    pairs = loaded.items() if isinstance(loaded, dict) else ()
    return {name: values for name, values in pairs if isinstance(values, dict)}

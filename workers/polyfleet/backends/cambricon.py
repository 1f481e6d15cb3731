"""Cambricon MLU: cnmon for facts and readings, torch_mlu for running."""

import re
from typing import ClassVar

from polyfleet.backends.accelerator import AcceleratorBackend, Collectives
from polyfleet.backends.host import TOOL_TIMEOUT_SECONDS, ToolResult
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

CARD = re.compile(r"^(\d+)\s+\S+\s+(MLU\S+)\s+\S+$")
MEMORY = re.compile(r"(\d+)\s*MiB/\s*(\d+)\s*MiB")
SENSORS = re.compile(r"(\S+)\s+(\S+?)C?\s+(\S+)\s*W/")
DRIVER = re.compile(r"Driver\s+v(\d+\.\d+\.\d+)")


@BackendRegistry.register(BackendType.CAMBRICON)
class CambriconBackend(AcceleratorBackend):
    """MLU cards under torch_mlu."""

    type = BackendType.CAMBRICON
    vendor = "Cambricon"
    pci_vendor = "0xcabc"
    torch_name = "mlu"
    extension = "torch_mlu"
    visible_variable = "MLU_VISIBLE_DEVICES"
    graph_class = "MLUGraph"
    collectives: ClassVar[Collectives] = Collectives("cncl", "CNCL")

    def present(self) -> bool:
        """By PCI or device node."""
        return super().present() or self._host.exists("dev/cambricon_dev[0-9]*")

    def missing_software(self, build: TorchBuild) -> str:
        """torch and torch_mlu, which only the vendor's images carry."""
        if not build.version or not installed("torch_mlu"):
            return "a Cambricon MLU is present, but torch_mlu is not installed: use the vendor's PyTorch image"
        return ""

    def probe(self) -> ProbeResult:
        """`cnmon`."""
        return parse_cnmon(self._host.run(("cnmon",), TOOL_TIMEOUT_SECONDS))

    def capabilities(self, device: DeviceInfo) -> KernelCapabilities:
        """bf16 from MLU5xx on (MLU3xx reports the type but has no hardware for it); no fp64."""
        generation = re.search(r"MLU(\d)", device.architecture)
        fresh = generation is not None and int(generation.group(1)) >= 5
        return KernelCapabilities(
            dtypes=frozenset({"float32", "float16", "int8"} | ({"bfloat16"} if fresh else set())),
            preferred_dtype="bfloat16" if fresh else "float16",
            graph_capture=self.can_capture(),
            streams=True,
            triton=installed("triton"),
            flash_attention=installed("torch_mlu_ops"),
            block_sizes=(16,),
        )


def parse_cnmon(result: ToolResult) -> ProbeResult:
    """Two physical rows a card, in every version since 4.20; of two memory pairs the first counts."""
    if result.problem:
        return unusable(result)
    driver = DRIVER.search(result.output)
    readings: list[DeviceReading] = []
    upper: list[str] | None = None
    for line in result.output.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if "Processes:" in line:
            break
        if len(cells) == 3 and CARD.match(cells[0]):
            upper = cells
        elif upper is not None and len(cells) == 3:
            readings.append(_reading(upper, cells, driver.group(1) if driver else None))
            upper = None
    if not readings:
        return without_devices("cnmon", result, "cnmon printed no table of cards")
    return ProbeResult(tuple(readings))


def _reading(upper: list[str], lower: list[str], driver: str | None) -> DeviceReading:
    card = CARD.match(upper[0])
    assert card is not None
    found, memory = SENSORS.match(lower[0]), MEMORY.search(lower[1])
    load, errors = [*upper[2].split(), "", ""][:2]
    named_driver = re.search(r"v(\d+\.\d+\.\d+)", upper[1])  # before 5: in the row
    num_errors = count(errors)
    return DeviceReading(
        index=int(card.group(1)),
        name=card.group(2),
        architecture=card.group(2).partition("-")[0],
        pci_bus_id=pci_address(upper[1]),
        driver_version=driver or (named_driver.group(1) if named_driver else None),
        memory_used_bytes=mebibytes(memory.group(1)) if memory else None,
        memory_total_bytes=mebibytes(memory.group(2)) if memory else None,
        temperature_celsius=number(found.group(2)) if found else None,
        power_watts=number(found.group(3)) if found else None,
        utilization_ratio=scaled(load, 0.01),
        errors_total=num_errors,
        health=Health.UNHEALTHY if num_errors else Health.HEALTHY,
        reason=f"{num_errors} ECC errors" if num_errors else "",
    )

"""Huawei Ascend: npu-smi for facts and readings, torch_npu for running."""

import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import ClassVar

from polyfleet.backends.accelerator import AcceleratorBackend, Collectives
from polyfleet.backends.host import TOOL_TIMEOUT_SECONDS
from polyfleet.backends.protocol import BackendType, DeviceInfo, DeviceStrain, Health, KernelCapabilities
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

HEALTH = {
    "OK": Health.HEALTHY,
    "Warning": Health.HEALTHY,
    "Alarm": Health.UNHEALTHY,
    "Critical": Health.UNHEALTHY,
    "UNKNOWN": Health.UNKNOWN,
}
USAGE = re.compile(r"(\S+)\s+([^\s/]+)\s*/\s*(\S+)(?:\s+([^\s/]+)\s*/\s*(\S+))?")
NAMED, NUMBERED = re.compile(r"\d+\s+\S"), re.compile(r"\d+(\s+\d+)?")  # how the two rows of a chip begin
CUT = ["0", "", ""]  # a second row that is not there
BUSY = "the device is used"
SHARED = "busy: another container holds the NPUs (npu-smi: device is used, -8020); map each card once"


@dataclass(frozen=True, slots=True)
class Chip:
    """A reading and where npu-smi finds it again."""

    npu: str
    chip: str
    reading: DeviceReading


@BackendRegistry.register(BackendType.ASCEND)
class AscendBackend(AcceleratorBackend):
    """Ascend NPUs under torch_npu."""

    type = BackendType.ASCEND
    vendor = "Huawei Ascend"
    pci_vendor = "0x19e5"
    torch_name = "npu"
    extension = "torch_npu"
    visible_variable = "ASCEND_RT_VISIBLE_DEVICES"
    settings: ClassVar[Mapping[str, str]] = {"PYTORCH_NPU_ALLOC_CONF": "expandable_segments:True"}
    graph_class = "NPUGraph"
    collectives: ClassVar[Collectives] = Collectives("hccl", "HCCL")

    def present(self) -> bool:
        """By device node: Huawei's PCI id also stands on network cards and bridges."""
        return self._host.exists("dev/davinci[0-9]*") or (
            super().present() and self._host.exists("dev/davinci_manager")
        )

    def missing_software(self, build: TorchBuild) -> str:
        """torch and torch_npu (with CANN)."""
        if not build.version or not installed("torch_npu"):
            return "an Ascend NPU is present, but torch_npu is not installed: use a CANN image or pip install torch-npu"
        return ""

    def probe(self) -> ProbeResult:
        """`npu-smi info`."""
        chips, failure = self._chips()
        return failure or ProbeResult(tuple(each.reading for each in chips))

    def probe_closely(self) -> ProbeResult:
        """As probe, with each chip's double-bit ECC errors, asked side by side."""
        chips, failure = self._chips()
        with ThreadPoolExecutor(max_workers=16) as pool:
            readings = tuple(pool.map(self._with_errors, chips))
        return failure or ProbeResult(readings)

    def environment(self, indices: Sequence[int]) -> dict[str, str]:
        """The runtime accepts a strictly ascending list only."""
        return super().environment(sorted(set(indices)))

    def capabilities(self, device: DeviceInfo) -> KernelCapabilities:
        """bf16 from 910B on, fp8 on 950; no Triton and no bf16 on 910A and 310P; KV blocks of 128."""
        name = device.architecture.removeprefix("Ascend")
        fresh = name.startswith(("910B", "910C", "910_93", "950"))
        dtypes = {"float32", "float16", "int8"} | ({"bfloat16"} if fresh else set())
        dtypes |= {"float8_e4m3fn"} if name.startswith("950") else set()
        return KernelCapabilities(
            dtypes=frozenset(dtypes),
            preferred_dtype="bfloat16" if fresh else "float16",
            graph_capture=self.can_capture(),
            streams=True,
            triton=fresh and installed("triton"),
            flash_attention=fresh,
            block_sizes=(128,),
        )

    def _chips(self) -> tuple[list[Chip], ProbeResult | None]:
        """What npu-smi lists, or why that can't be had."""
        result = self._host.run(("npu-smi", "info"), TOOL_TIMEOUT_SECONDS)
        if result.problem:
            return [], unusable(result)
        if BUSY in result.output:
            return [], ProbeResult(problem=SHARED)
        chips = parse_info(result.output)
        return chips, None if chips else without_devices("npu-smi", result, "npu-smi printed no table of NPUs")

    def _with_errors(self, chip: Chip) -> DeviceReading:
        command = ("npu-smi", "info", "-i", chip.npu, "-c", chip.chip, "-t", "ecc")
        result = self._host.run(command, TOOL_TIMEOUT_SECONDS)
        if result.problem:
            return replace(chip.reading, health=Health.UNHEALTHY, reason=result.problem)
        errors = parse_ecc(result.output)
        reading = replace(chip.reading, errors_total=errors, strain=parse_strain(result.output))
        if not errors:
            return reading
        return replace(reading, health=Health.UNHEALTHY, reason=f"{errors} double-bit ECC errors")


def parse_info(text: str) -> list[Chip]:
    """Rows are split on | and blanks, never on columns; two physical rows make one chip; the process list ends it.

    A chip whose second row is cut off is one without readings.
    """
    version = re.search(r"Version:\s*(\S+)", text)
    pairs: list[tuple[list[str], list[str]]] = []
    for line in text.partition("Process id")[0].splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) < 3:
            continue
        if NUMBERED.fullmatch(cells[0]) and cells[1] not in HEALTH:
            if pairs and pairs[-1][1] is CUT:
                pairs[-1] = pairs[-1][0], cells
        elif NAMED.match(cells[0]):
            pairs.append((cells, CUT))
    driver = version.group(1) if version else None
    chips = [_chip(index, upper, lower, driver) for index, (upper, lower) in enumerate(pairs)]
    return list(map(_as_a3, chips)) if "Phy-ID" in text else chips


def _chip(index: int, upper: list[str], lower: list[str], driver: str | None) -> Chip:
    npu, _, name = upper[0].partition(" ")
    name = name.strip()
    power, temperature = [*upper[2].split(), "-", "-"][:2]
    usage = USAGE.match(lower[2])
    load, used, total, hbm_used, hbm_total = usage.groups() if usage else ("",) * 5
    if mebibytes(hbm_total or ""):
        used, total = hbm_used, hbm_total
    health = HEALTH.get(upper[1], Health.UNKNOWN)
    reading = DeviceReading(
        index=index,
        name=name,
        architecture=name if name.startswith("Ascend") else f"Ascend{name}",
        pci_bus_id=pci_address(lower[1]),
        driver_version=driver,
        memory_used_bytes=mebibytes(used),
        memory_total_bytes=mebibytes(total),
        power_watts=number(power),
        temperature_celsius=number(temperature),
        utilization_ratio=scaled(load, 0.01),
        health=health,
        reason="" if upper[1] == "OK" else f"npu-smi says {upper[1]}",
    )
    return Chip(npu, lower[0].split()[0], reading)


def _as_a3(chip: Chip) -> Chip:
    """Only A3 prints physical ids; its chips are 910_93xx, which the table calls Ascend910 like the first 910."""
    if chip.reading.architecture != "Ascend910":
        return chip
    return replace(chip, reading=replace(chip.reading, architecture="Ascend910_93"))


def parse_ecc(text: str) -> int | None:
    """The sum of double-bit error counts of DDR and HBM; None when there are none to read."""
    return _sum(r"Double Bit Error Count", text)


def parse_strain(text: str) -> DeviceStrain:
    """The single-bit errors and the isolated pages of DDR and HBM."""
    pages = _sum(r"Bit Isolated Pages Count", text)
    return DeviceStrain(corrected_errors_total=_sum(r"Single Bit Error Count", text), remapped_rows=pages)


def _sum(name: str, text: str) -> int | None:
    """Of all lines whose name ends so; None without any."""
    counts = re.findall(rf"{name}\s*:\s*(\d+)", text)
    return sum(int(each) for each in counts) if counts else None

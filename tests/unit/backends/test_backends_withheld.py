"""Tools that tell less of a card than they might: it stays a card, without those readings."""

import re
from collections.abc import Callable, Sequence

import pytest
from tests.unit.backends.test_backends_parsers import sample

from polyfleet.backends import ascend, cambricon, cuda, hygon, rocm, xpu
from polyfleet.backends.host import Host, ToolResult
from polyfleet.backends.protocol import Health
from polyfleet.backends.reading import DeviceReading, mebibytes, number

H100 = "0, GPU-a, NVIDIA H100, 00000000:{}:00.0, 81559, 1024, 35, 70.5, 10, 0, 1980, 535.1, 9.0\n"


def npus(result: ToolResult) -> Sequence[DeviceReading]:
    return [chip.reading for chip in ascend.parse_info(result.output)]


PARSERS: dict[str, Callable[[ToolResult], Sequence[DeviceReading]]] = {
    "amd-smi_rocm7.txt": lambda result: rocm.parse_amd_smi(result).readings,
    "rocm-smi_mi250x.txt": lambda result: rocm.parse_rocm_smi(result).readings,
    "rocm-smi_mi300x.txt": lambda result: rocm.parse_rocm_smi(result).readings,
    "rocm-smi_single_line.txt": lambda result: rocm.parse_rocm_smi(result).readings,
    "hy-smi_dtk25_hcu.txt": lambda result: hygon.parse_table(result).readings,
    "npu-smi_info_910b4.txt": npus,
    "npu-smi_info_910a_warning.txt": npus,
    "npu-smi_info_a3.txt": npus,
    "cnmon_5.10.13.txt": lambda result: cambricon.parse_cnmon(result).readings,
    "cnmon_4.20.11.txt": lambda result: cambricon.parse_cnmon(result).readings,
    "xpu-smi_v2_default.txt": lambda result: xpu.parse_table(result.output).readings,
}
# A figure with its unit, or one of a pair; of npu-smi, whose have none, all of a row's last cell.
FIGURE = re.compile(r"(?<![\w.])[\d.]+ ?(?=(?:°?[Cc]|W|MiB|Mhz|%)(?![a-z]))|(?<=/)\s*[\d.]+(?= )|[\d.]+(?=\s*/\s*\d)")
NPU_FIGURES = re.compile(r"^(\| \d.*\|)([^|\n]*)\|", re.MULTILINE)
ADDRESS = re.compile(r"[0-9a-fA-F]{4}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.\d")


def withheld(name: str, cell: str) -> str:
    """The sample with `cell` for each figure."""
    text = sample(name).output
    if name.startswith("npu-smi"):
        return NPU_FIGURES.sub(lambda row: row[1] + re.sub(r"[\d.]+", cell, row[2]) + "|", text)
    return re.sub(r"N/A ?°?[Cc]\b", "N/A", FIGURE.sub(cell, text))


@pytest.mark.parametrize("name", PARSERS)
@pytest.mark.parametrize("cell", ["N/A", "1,5"])
def test_a_card_whose_figures_are_withheld_is_a_card(name: str, cell: str) -> None:
    known, found = PARSERS[name](sample(name)), PARSERS[name](ToolResult(withheld(name, cell), 9))
    assert [(each.index, each.name, each.pci_bus_id) for each in found] == [
        (each.index, each.name, each.pci_bus_id) for each in known
    ]
    for each in found:
        assert (each.temperature_celsius, each.power_watts, each.memory_used_bytes, each.utilization_ratio) == (
            None,
        ) * 4
        assert each.health is Health.HEALTHY


@pytest.mark.parametrize("name", [each for each in PARSERS if each.startswith(("npu-smi", "cnmon", "xpu-smi"))])
def test_a_card_without_a_bus_address_is_a_card(name: str) -> None:
    found = PARSERS[name](ToolResult(ADDRESS.sub("NA", sample(name).output)))
    assert len(found) == len(PARSERS[name](sample(name)))
    assert {each.pci_bus_id for each in found} == {None}


@pytest.mark.parametrize("name", PARSERS)
def test_half_of_an_output_breaks_nothing(name: str) -> None:
    text = sample(name).output
    for end in range(0, len(text), 7):
        found = PARSERS[name](ToolResult(text[:end], 9))
        assert [each.index for each in found] == list(range(len(found)))


def test_npus_that_stop_in_the_middle_or_say_what_nobody_knows_keep_their_places() -> None:
    lines = sample("npu-smi_info_a3.txt").output.splitlines()
    (first,) = (at for at, line in enumerate(lines) if "0000:9D" in line)
    cut = npus(ToolResult("\n".join(lines[:first] + lines[first + 1 :])))
    assert [(each.index, each.pci_bus_id) for each in cut] == [(0, None), (1, "0000:9f:00.0")]
    (unknown,) = npus(ToolResult(sample("npu-smi_info_910b4.txt").output.replace("| OK ", "| Subhealthy ")))
    assert (unknown.health, unknown.reason) == (Health.UNKNOWN, "npu-smi says Subhealthy")


def test_a_row_with_commas_for_points_is_a_card_without_readings() -> None:
    rows = H100.format("02") + H100.format("01").replace("70.5", "70,5") + "1, GPU-c, NVI"
    second, first = cuda.parse_query(ToolResult(rows, 9), cuda.QUERY).readings
    assert (second.pci_bus_id, second.power_watts, second.memory_total_bytes) == ("0000:01:00.0", None, None)
    assert (second.name, second.health, second.driver_version) == ("NVIDIA H100", Health.HEALTHY, None)
    assert (first.pci_bus_id, first.power_watts) == ("0000:02:00.0", 70.5)


def test_a_card_out_of_reach_keeps_its_place_among_the_others() -> None:
    said = "Unable to determine the device handle for GPU0000:01:00.0: Unknown Error\n"
    lost, other = cuda.parse_query(ToolResult(said + H100.format("02"), 15), cuda.QUERY).readings
    assert (lost.pci_bus_id, lost.health, lost.reason) == (
        "0000:01:00.0",
        Health.UNHEALTHY,
        "the driver has lost the device",
    )
    assert (other.index, other.pci_bus_id, other.health) == (1, "0000:02:00.0", Health.HEALTHY)
    assert cuda.parse_query(ToolResult(said, 15), cuda.QUERY).problem.startswith("nvidia-smi printed no device: Unable")


def test_fields_that_an_older_driver_refuses_are_left_out_one_by_one() -> None:
    refused = ["clocks.sm", "compute_cap", "ecc.errors.uncorrected.volatile.total"]

    def run(command: Sequence[str], timeout: float) -> ToolResult:
        fields = command[1].removeprefix("--query-gpu=").split(",")
        for field in refused:
            if field in fields:
                return ToolResult(f'Field "{field}" is not a valid field to query.\n', 2)
        cells = dict(zip(cuda.QUERY, H100.format("01").strip().split(", "), strict=True))
        return ToolResult(", ".join(cells.get(each, "[N/A]") for each in fields) + "\n")

    (found,) = cuda.CudaBackend(Host(run=run))._query_tool().readings
    assert (found.temperature_celsius, found.driver_version) == (35, "535.1")
    assert (found.clock_hertz, found.errors_total, found.architecture) == (None, None, "")
    refused.append("uuid")  # without it nobody is told apart
    assert "not a valid field" in cuda.CudaBackend(Host(run=run))._query_tool().problem


def test_a_discovery_with_fewer_keys_is_one_of_cards() -> None:
    (found,) = xpu.parse_discovery('{"device_list": [{"device_id": 0}]}').readings
    assert (found.index, found.name, found.uuid, found.pci_bus_id) == (0, "", None, None)


@pytest.mark.parametrize("cell", ["1,024", "35,5 C", "1,024 MiB"])
def test_a_figure_with_a_comma_is_not_guessed(cell: str) -> None:
    assert number(cell) is None
    assert mebibytes(cell) is None

"""Vendor tools' output as recorded on real cards: values, units, withheld readings, other vendors' tools, garbage."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyfleet.backends import ascend, cambricon, cuda, hygon, mps, rocm, xpu
from polyfleet.backends.host import ToolResult, run_tool
from polyfleet.backends.protocol import Health
from polyfleet.backends.reading import ProbeResult, mebibytes, number, pci_address
from polyfleet.backends.torch_build import parse_version_file

TOOLS = Path(__file__).parents[2] / "data" / "tools"
MIB = 2**20


def sample(name: str) -> ToolResult:
    return ToolResult((TOOLS / name).read_text())


@pytest.mark.parametrize(
    ("name", "temperatures", "powers", "loads"),
    [
        ("rocm-smi_single_line.txt", [31, 34], [43, 43], [0, 0]),
        ("rocm-smi_mi250x.txt", [45, 44, 45, 44], [92, None, 89, None], [0, 0, 0, 0]),
        ("rocm-smi_rocm5_rows.txt", [55], [292], [1.0]),
        ("rocm-smi_mi300x.txt", [40], [155], [0]),
        ("rocm-smi_rocm7_radeon_warning.txt", [54, 45], [41, 48], [0.33, 0.03]),
        ("rocm-smi_apu_strix_halo.txt", [36], [23.039], [0]),
    ],
)
def test_rocm_smi_generations(
    name: str, temperatures: list[float], powers: list[float | None], loads: list[float]
) -> None:
    readings = rocm.parse_rocm_smi(sample(name)).readings
    assert [each.temperature_celsius for each in readings] == temperatures
    assert [each.power_watts for each in readings] == powers
    assert [each.utilization_ratio for each in readings] == pytest.approx(loads)


def test_rocm_smi_clock_is_sclk_or_unknown() -> None:
    assert [each.clock_hertz for each in rocm.parse_rocm_smi(sample("rocm-smi_mi300x.txt")).readings] == [139e6]
    assert [each.clock_hertz for each in rocm.parse_rocm_smi(sample("rocm-smi_apu_strix_halo.txt")).readings] == [None]


def test_amd_smi_table() -> None:
    (reading,) = rocm.parse_amd_smi(sample("amd-smi_rocm7.txt")).readings
    assert (reading.name, reading.pci_bus_id) == ("AMD Instinct MI300X", "0003:00:03.0")
    assert (reading.temperature_celsius, reading.power_watts, reading.errors_total) == (41, 124, 0)
    assert (reading.memory_used_bytes, reading.memory_total_bytes) == (283 * MIB, 196592 * MIB)
    assert reading.driver_version == "6.12.12"


def test_another_vendors_rocm_smi_is_told_apart() -> None:
    result = rocm.parse_rocm_smi(sample("hy-smi_dtk25_hcu.txt"))
    assert result.readings == ()
    assert "Hygon" in result.problem


@pytest.mark.parametrize(
    ("name", "temperatures", "loads"),
    [
        ("hy-smi_dtk24_dcu.txt", [58, 58, 57, 58, 41], [0.342, 0.425, 0.733, 0.883, 0]),
        ("hy-smi_dtk25_hcu.txt", [63, 63], [0, 0]),
        ("hy-smi_dtk2604_bw1000.txt", [50, 51], [0, 0]),
    ],
)
def test_hy_smi_generations(name: str, temperatures: list[float], loads: list[float]) -> None:
    readings = hygon.parse_table(sample(name)).readings
    assert [each.temperature_celsius for each in readings] == temperatures
    assert [each.utilization_ratio for each in readings] == pytest.approx(loads)


def test_hy_smi_cards() -> None:
    cards = hygon.parse_cards(sample("hy-smi_showmeminfo_vram.json"), sample("hy-smi_showbus.json"))
    assert {index: each.pci_bus_id for index, each in cards.items()} == {0: "0000:09:00.0", 1: "0000:36:00.0"}
    assert cards[1].memory_used_bytes == 9651 * MIB


@pytest.mark.parametrize(
    ("name", "used_mib", "total_mib", "powers", "healths"),
    [
        ("npu-smi_info_910b4.txt", [2894], [32768], [84.7], ["healthy"]),
        ("npu-smi_info_910a_warning.txt", [0, 0], [32768, 32768], [73.1, 67.0], ["healthy", "healthy"]),
        ("npu-smi_info_910a_hugepages.txt", [30710], [32768], [73.4], ["healthy"]),
        ("npu-smi_info_a3.txt", [61609, 61625], [65536, 65536], [211.3, None], ["healthy", "healthy"]),
        ("npu-smi_info_m.txt", [], [], [], []),
    ],
)
def test_npu_smi_generations(
    name: str, used_mib: list[int], total_mib: list[int], powers: list[float | None], healths: list[str]
) -> None:
    readings = [chip.reading for chip in ascend.parse_info(sample(name).output)]
    assert [each.memory_used_bytes for each in readings] == [value * MIB for value in used_mib]
    assert [each.memory_total_bytes for each in readings] == [value * MIB for value in total_mib]
    assert [each.power_watts for each in readings] == powers
    assert [each.health.value for each in readings] == healths


def test_npu_health_and_ecc() -> None:
    critical = sample("npu-smi_info_910b4.txt").output.replace("| OK ", "| Critical ")
    (chip,) = ascend.parse_info(critical)
    assert chip.reading.health is Health.UNHEALTHY
    assert chip.reading.reason == "npu-smi says Critical"
    assert ascend.parse_ecc(sample("npu-smi_ecc.txt").output) == 0
    assert ascend.parse_ecc("") is None


@pytest.mark.parametrize(
    ("name", "models", "addresses", "totals", "errors"),
    [
        ("cnmon_5.10.13.txt", ["MLU370-X8"] * 2, ["0000:39:00.0", "0000:3d:00.0"], [23374] * 2, [None, None]),
        ("cnmon_5.10.22.txt", ["MLU370-X8"], ["0000:13:00.0"], [20638], [0]),
        ("cnmon_4.20.11.txt", ["MLU370-X4"], [None], [23308], [None]),
    ],
)
def test_cnmon_generations(
    name: str, models: list[str], addresses: list[str | None], totals: list[int], errors: list[int | None]
) -> None:
    readings = cambricon.parse_cnmon(sample(name)).readings
    assert [each.name for each in readings] == models
    assert [each.pci_bus_id for each in readings] == addresses
    assert [each.memory_total_bytes for each in readings] == [value * MIB for value in totals]
    assert [each.errors_total for each in readings] == errors
    assert all(each.driver_version == name.removeprefix("cnmon_").removesuffix(".txt") for each in readings)


def test_xpu_smi_of_both_versions() -> None:
    (table,) = xpu.parse_table(sample("xpu-smi_v2_default.txt").output).readings
    assert (table.name, table.pci_bus_id) == ("Intel(R) Arc(TM) B580", "0000:03:00.0")
    assert (table.temperature_celsius, table.power_watts, table.errors_total) == (25, 66, None)
    assert (table.memory_used_bytes, table.memory_total_bytes) == (239 * MIB, 12216 * MIB)
    (found,) = xpu.parse_discovery(sample("xpu-smi_v1_discovery.json").output).readings
    one_tile = xpu.replace_stats(found, sample("xpu-smi_v1_stats.txt").output)
    assert (one_tile.temperature_celsius, one_tile.power_watts, one_tile.clock_hertz) == (41, 15, 2050e6)
    two_tiles = xpu.replace_stats(found, sample("xpu-smi_v1_stats_two_tiles.txt").output)
    assert (two_tiles.temperature_celsius, two_tiles.power_watts) == (40, 240)
    assert (two_tiles.memory_used_bytes, two_tiles.errors_total) == (1278 * MIB, None)


def test_macos_profile() -> None:
    ioreg = sample("ioreg_ioaccelerator.txt").output
    (reading,) = mps.parse_profile(sample("system_profiler_displays.json"), "68719476736\n", ioreg).readings
    assert (reading.name, reading.cores, reading.utilization_ratio) == ("Apple M4 Max", 40, 0.16)
    assert reading.memory_used_bytes == 2363801600


def test_nvidia_query_withheld_and_ecc() -> None:
    row = "0, GPU-6, NVIDIA GB10, 0000000F:01:00.0, [N/A], [N/A], 41, [N/A], 0, {}, 208, 580.95, 12.1\n"
    (withheld,) = cuda.parse_query(ToolResult(row.format("[N/A]")), cuda.QUERY).readings
    assert (withheld.power_watts, withheld.memory_total_bytes, withheld.health) == (None, None, Health.HEALTHY)
    assert (withheld.pci_bus_id, withheld.architecture) == ("000f:01:00.0", "sm_121")
    (broken,) = cuda.parse_query(ToolResult(row.format("3")), cuda.QUERY).readings
    assert (broken.health, broken.reason) == (Health.UNHEALTHY, "3 uncorrected ECC errors")


@given(st.text(max_size=300), st.sampled_from(sorted(path.name for path in TOOLS.glob("*"))))
def test_garbage_and_other_tools_output_never_raise(garbage: str, other: str) -> None:
    for result in (ToolResult(garbage), sample(other), ToolResult(problem="x is not installed")):
        for parse in (rocm.parse_rocm_smi, rocm.parse_amd_smi, hygon.parse_table, cambricon.parse_cnmon):
            assert isinstance(parse(result), ProbeResult)
        assert isinstance(cuda.parse_query(result, cuda.QUERY), ProbeResult)
        assert isinstance(mps.parse_profile(result, "", ""), ProbeResult)
        ascend.parse_info(result.output)
        assert isinstance(xpu.parse_table(result.output), ProbeResult)
        assert isinstance(xpu.parse_discovery(result.output), ProbeResult)


@pytest.mark.parametrize("cell", ["N/A", "-", "", "[Not Supported]", 0xFFFF, "9223372036854775794", "NA"])
def test_withheld_is_none_not_zero(cell: object) -> None:
    assert number(cell) is None
    assert mebibytes(cell) is None


def test_pci_addresses_have_four_domain_digits() -> None:
    assert pci_address("00000000:00:03.0") == "0000:00:03.0"
    assert pci_address("0000:C1:00.0 --> SN") == "0000:c1:00.0"
    assert pci_address("none here") is None


def test_torch_build_is_read_without_importing_torch() -> None:
    text = "__version__ = '2.11.0+cu128'\ndebug = False\ncuda: Optional[str] = '12.8'\nhip: Optional[str] = None\n"
    build = parse_version_file(text)
    assert (build.version, build.cuda, build.hip, build.xpu) == ("2.11.0+cu128", "12.8", None, None)


def test_a_tool_that_hangs_is_killed() -> None:
    result = run_tool(("sleep", "30"), 0.2)
    assert result.problem == "sleep did not answer within 0.2 s"


def test_a_tool_that_crashes_or_is_absent_is_reported() -> None:
    assert run_tool(("sh", "-c", "kill -SEGV $$"), 5).problem == "sh was killed by signal 11"
    assert run_tool(("no-such-tool",), 5).problem == "no-such-tool is not installed"

"""What vendors' libraries and tools tell of wear, throttling, links and faults."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from tests.support.vendor_libraries import fake_amdsmi, fake_nvml, probed

from polyfleet.backends import ascend, cuda, fault_events, library_probe
from polyfleet.backends.host import ToolResult
from polyfleet.backends.protocol import DeviceStrain, Health
from polyfleet.backends.reading import DeviceReading, ProbeResult


def strained(nvml: ModuleType) -> None:
    """The card of handle 1 tells all; that of handle 0 refuses every call."""

    def of(value: Any) -> Any:
        def call(card: int, *_: object) -> Any:
            if card == 0:
                raise nvml.NVMLError("Not Supported")
            return value

        return call

    def link(card: int, number: int) -> int:
        if card == 0 or number > 3:
            raise nvml.NVMLError("Invalid Argument")
        return int(number != 2)

    vars(nvml).update(
        NVML_MEMORY_ERROR_TYPE_CORRECTED=0,
        nvmlDeviceGetTotalEccErrors=lambda card, kind, counter: 12 if (card, kind) == (1, 0) else 0,
        nvmlDeviceGetCurrentClocksEventReasons=of(0x1 | 0x4 | 0x40 | 0x80),
        nvmlDeviceGetRemappedRows=of((3, 1, 1, 0)),
        nvmlDeviceGetCurrPcieLinkGeneration=of(5),
        nvmlDeviceGetCurrPcieLinkWidth=of(8),
        nvmlDeviceGetMaxPcieLinkWidth=of(16),
        nvmlDeviceGetNvLinkState=link,
    )


def test_strain_is_what_nvml_tells_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = fake_nvml()
    strained(nvml)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    h100, t4 = probed(monkeypatch).readings
    assert h100.telemetry().strain == DeviceStrain(
        corrected_errors_total=12,
        remapped_rows=4,
        remap_pending=True,
        throttle_reasons=("power_cap", "thermal", "power_brake"),
        pcie_generation=5,
        pcie_lanes=8,
        pcie_max_lanes=16,
        links_up=3,
        links_down=1,
    )
    assert t4.strain == DeviceStrain(corrected_errors_total=0)
    assert [each.health for each in (h100, t4)] == [Health.HEALTHY] * 2


def test_an_older_nvml_calls_the_reasons_by_their_old_name_and_idleness_is_none() -> None:
    nvml = fake_nvml()
    vars(nvml)["nvmlDeviceGetCurrentClocksThrottleReasons"] = lambda card: (0x8 | 0x100, 0x1)[card]
    h100, t4 = library_probe.read_nvml(nvml)
    assert (h100.strain.throttle_reasons, t4.strain.throttle_reasons) == ((), ("hardware", "clock_limit"))


def test_strain_is_what_amdsmi_tells_of_it() -> None:
    smi = fake_amdsmi()
    vars(smi).update(
        amdsmi_get_gpu_total_ecc_count=lambda handle: {"correctable_count": 7, "uncorrectable_count": 0},
        amdsmi_get_pcie_info=lambda handle: {"pcie_static": {"max_pcie_width": 16}, "pcie_metric": {"pcie_width": 16}},
        amdsmi_get_gpu_bad_page_info=lambda handle: [{"page_address": 1}] if handle == "a" else "No bad pages found.",
        amdsmi_get_violation_status=lambda handle: {
            "active_ppt_pwr": "N/A" if handle == "b" else True,
            "active_prochot_thrm": "N/A" if handle == "b" else False,
        },
    )
    first, second = library_probe.read_amdsmi(smi)
    lanes = DeviceStrain(pcie_lanes=16, pcie_max_lanes=16, corrected_errors_total=7)
    assert first.strain == replace(lanes, remapped_rows=1, throttle_reasons=("power_cap",))
    assert second.strain == lanes


def test_faults_are_told_as_they_come_and_a_card_that_tells_none_is_left_out() -> None:
    nvml = fake_nvml()

    class NVMLError_Timeout(nvml.NVMLError):  # type: ignore[name-defined,misc]
        pass

    def register(card: int, kind: int, events: list[int]) -> None:
        if card == 0:
            raise nvml.NVMLError("Not Supported")
        events.append(card)

    news: Iterator[int | None] = iter([None, 79, 48])

    def wait(events: list[int], timeout: int) -> SimpleNamespace:
        if (code := next(news)) is None:
            raise NVMLError_Timeout
        return SimpleNamespace(device=events[0], eventData=code)

    vars(nvml).update(
        NVMLError_Timeout=NVMLError_Timeout,
        nvmlEventTypeXidCriticalError=8,
        nvmlEventSetCreate=list,
        nvmlDeviceRegisterEvents=register,
        nvmlEventSetWait_v2=wait,
    )
    told = fault_events.fault_lines(nvml, os.getppid())
    assert [json.loads(next(told)) for _ in range(2)] == [
        {"pci_bus_id": "0000:18:00.0", "code": "XID 79"},
        {"pci_bus_id": "0000:18:00.0", "code": "XID 48"},
    ]
    assert list(fault_events.fault_lines(nvml, -1)) == []  # its parent is gone


def test_whoever_hears_faults_ends_well_where_the_library_is_absent(tmp_path: Path) -> None:
    (tmp_path / "pynvml.py").write_text("raise ImportError\n")
    path = os.pathsep.join([str(tmp_path), *sys.path])
    run = subprocess.run(
        cuda.CudaBackend.fault_command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, check=False
    )
    assert (run.returncode, run.stdout) == (0, b"")


def test_strain_is_what_the_tools_tell_of_it() -> None:
    found = ProbeResult((DeviceReading(index=0, pci_bus_id="0000:18:00.0"), DeviceReading(index=1)))
    row = "00000000:18:00.0, 4, 0x0000000000000004, 4, 8, 16\n00000000:2A:00.0, [N/A], [N/A], [N/A], [N/A], [N/A]\n"
    first, second = cuda.with_strain(found, ToolResult(row)).readings
    lanes = DeviceStrain(corrected_errors_total=4, pcie_generation=4, pcie_lanes=8, pcie_max_lanes=16)
    assert first.strain == replace(lanes, throttle_reasons=("power_cap",))
    assert second.strain == DeviceStrain()
    for refused in (ToolResult('Field "pcie.x" is not a valid field to query.'), ToolResult(problem="it hung")):
        assert cuda.with_strain(found, refused) is found
    withheld = ToolResult(row.replace("0x0000000000000004", "[Not Supported]"))
    assert cuda.with_strain(found, withheld).readings[0].strain == lanes


def test_isolated_pages_and_single_bits_are_ascend_s_strain() -> None:
    text = "DDR Single Bit Error Count : 1\nHBM Single Bit Error Count : 2\nHBM Double Bit Isolated Pages Count : 3\n"
    assert ascend.parse_strain(text) == DeviceStrain(corrected_errors_total=3, remapped_rows=3)
    assert ascend.parse_strain("nothing") == DeviceStrain()

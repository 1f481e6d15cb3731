"""Parts of devices, what the installed torch brings, and what is no device: on described machines."""

import sys
from importlib import import_module
from importlib.util import spec_from_file_location
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.described_host import MIG_LIST, described, load_machine
from tests.support.fake_vendors import GIB

from polyfleet.backends import torch_build
from polyfleet.backends.accelerator import AcceleratorBackend
from polyfleet.backends.protocol import DeviceInfo, Health, MemoryInfo
from polyfleet.backends.registry import BUILT_IN, BackendRegistry

MACHINE_OF = {
    "ascend": "linux_ascend_a3_x2",
    "cambricon": "linux_cambricon_mlu370_x2",
    "xpu": "linux_intel_b580",
}


def factory(name: str) -> Any:
    import_module(BUILT_IN[name])
    return BackendRegistry._factories[name]


@pytest.mark.parametrize(
    ("name", "machine", "variable", "value", "shown"),
    [
        ("cuda", "linux_nvidia_h100_x2", "CUDA_VISIBLE_DEVICES", "MIG-4b7c2a1e", "NVIDIA H100 80GB HBM3 MIG 3g.40gb"),
        (
            "cuda",
            "linux_nvidia_h100_x2",
            "CUDA_VISIBLE_DEVICES",
            "MIG-GPU-00000001/7/0",
            "NVIDIA H100 80GB HBM3 MIG 7/0",
        ),
        ("cuda", "linux_nvidia_h100_x2", "CUDA_VISIBLE_DEVICES", "MIG-ffffffff", "MIG device"),
        ("xpu", "linux_intel_b580", "ZE_AFFINITY_MASK", "0.1", "Intel(R) Arc(TM) B580 tile 1"),
    ],
)
def test_a_part_of_a_device_is_one_device_whose_memory_is_not_the_whole_s(
    name: str, machine: str, variable: str, value: str, shown: str, tmp_path: Path
) -> None:
    facts = {**load_machine(machine), "environ": {variable: value}}
    facts["tools"]["nvidia-smi -L"] = {"output": MIG_LIST}
    host, build, _ = described(facts, tmp_path)
    backend = factory(name)(host=host, build=build)
    assert backend.availability().available
    (device,) = backend.devices()
    assert (device.name, device.total_memory_bytes, device.total_memory_gb) == (shown, None, None)
    (reading,) = backend.telemetry()
    assert reading.health is (Health.UNKNOWN if shown == "MIG device" else Health.HEALTHY)
    assert reading.memory_used_bytes is None
    assert backend.environment([0])[variable] == value


@pytest.mark.parametrize("name", ["xpu", "ascend", "cambricon"])
def test_graphs_are_captured_only_with_a_torch_that_brings_their_class(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, build, _ = described(load_machine(MACHINE_OF[name]), tmp_path / "machine")
    made: AcceleratorBackend = factory(name)(host=host, build=build)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    folder = tmp_path / "site" / (made.extension or "torch")
    (folder / made.torch_name).mkdir(parents=True)
    (folder / "__init__.py").touch()
    monkeypatch.setattr(torch_build, "find_spec", lambda each: spec_from_file_location(each, folder / "__init__.py"))
    device = DeviceInfo(0, "x", "x", None)
    assert not made.capabilities(device).graph_capture
    (folder / made.torch_name / "graphs.py").write_text("class Other:\n    pass\n")
    assert not made.capabilities(device).graph_capture
    (folder / made.torch_name / "graphs.py").write_text(f"class {made.graph_class}(Base):\n    pass\n")
    assert made.capabilities(device).graph_capture


def test_memory_that_torch_cannot_ask_for_is_what_this_process_has_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, build, _ = described(load_machine(MACHINE_OF["xpu"]), tmp_path)
    backend = factory("xpu")(host=host, build=build)
    total = SimpleNamespace(total_memory=16 * GIB)
    older = SimpleNamespace(get_device_properties=lambda index: total, memory_reserved=lambda index: GIB)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(xpu=older))
    assert backend.memory() == MemoryInfo(15 * GIB, 16 * GIB)

    def refuse(message: str) -> Any:
        def ask(index: int) -> None:
            raise RuntimeError(message)

        return ask

    older.mem_get_info = refuse("The device doesn't support querying the available free memory")
    assert backend.memory() == MemoryInfo(15 * GIB, 16 * GIB)
    older.mem_get_info = refuse("UR error: device lost")
    with pytest.raises(RuntimeError, match="device lost"):
        backend.memory()


def test_one_card_is_of_one_family(tmp_path: Path) -> None:
    """Hygon's cards beside an AMD display card, both under the compute driver's node and a HIP build of torch."""
    machine = load_machine("linux_hygon_bw_x2")
    machine["pci"] += [
        ["0000:03:00.0", "0x1002", "0x744c", "0x030000"],
        ["0000:03:00.1", "0x1002", "0xab30", "0x040300"],
    ]
    machine["files"] |= {
        f"sys/class/kfd/kfd/topology/nodes/{node}/properties": (
            f"simd_count 320\nsimd_per_cu 4\nvendor_id 7572\ndevice_id 25456\ngfx_target_version 90306\n"
            f"location_id {bus << 8}\ndomain 0\n"
        )
        for node, bus in ((1, 0x09), (2, 0x36))
    }
    machine["tools"]["amd-smi"] = {"sample": "amd-smi_rocm7.txt"}
    host, build, _ = described(machine, tmp_path)
    found = {name: factory(name)(host=host, build=build) for name in ("rocm", "hygon")}
    assert [name for name, each in found.items() if each.availability().available] == ["hygon"]
    assert found["rocm"].availability().reason == "the compute devices of this machine are Hygon's, not AMD's"
    assert [each.pci_bus_id for each in found["hygon"].devices()] == ["0000:09:00.0", "0000:36:00.0"]


@pytest.mark.parametrize(
    ("name", "functions"),
    [
        ("hygon", [["0000:00:00.0", "0x1d94", "0x1450", "0x060000"], ["0000:08:00.2", "0x1d94", "0x1456", "0x108000"]]),
        ("cuda", [["0000:01:00.1", "0x10de", "0x10f0", "0x040300"], ["0000:01:00.2", "0x10de", "0x1ad8", "0x0c0330"]]),
        ("xpu", [["0000:00:1f.6", "0x8086", "0x15f9", "0x020000"]]),
    ],
)
def test_what_a_vendor_makes_beside_devices_is_none(name: str, functions: list[list[str]], tmp_path: Path) -> None:
    machine = {"pci": functions, "torch": {"version": "2.10.0", "hip": "6.3"}, "files": {"dev/dri/renderD128": ""}}
    host, build, _ = described(machine, tmp_path)
    backend = factory(name)(host=host, build=build)
    assert "device is present (PCI vendor" in backend.availability().reason
    assert (backend.devices(), backend.telemetry()) == ((), ())

"""The contract of every backend, on described machines with fake vendor modules, and on the CPU of this machine."""

import inspect
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from tests.support.described_host import MIG_LIST, described, load_machine
from tests.support.fake_vendors import GIB, fake_torch

from polyfleet.backends import torch_build
from polyfleet.backends.accelerator import AcceleratorBackend
from polyfleet.backends.cpu import CpuBackend, usable_cores
from polyfleet.backends.host import Host, ToolResult
from polyfleet.backends.protocol import BackendUnavailable, HardwareBackend, Health
from polyfleet.backends.registry import BUILT_IN, BackendRegistry

MACHINE_OF = {
    "cuda": "linux_nvidia_h100_x2",
    "rocm": "linux_amd_mi300x",
    "hygon": "linux_hygon_bw_x2",
    "ascend": "linux_ascend_a3_x2",
    "cambricon": "linux_cambricon_mlu370_x2",
    "xpu": "linux_intel_b580",
    "mps": "macos_m4_max",
}
DTYPES = {"float32", "float16", "bfloat16", "float64", "int8", "float8_e4m3fn", "float8_e5m2"} | {
    "float8_e4m3fnuz",
    "float8_e5m2fnuz",
}


def factory(name: str) -> Any:
    import_module(BUILT_IN[name])
    return BackendRegistry._factories[name]


@pytest.fixture(params=[*MACHINE_OF, "cpu"])
def backend(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HardwareBackend:
    name: str = request.param
    if name == "cpu":
        return CpuBackend()
    machine = load_machine(MACHINE_OF[name])
    host, build, _ = described(machine, tmp_path)
    modules = set(machine.get("modules", []))
    monkeypatch.setattr(torch_build, "find_spec", lambda each: object() if each in modules else None)
    made: AcceleratorBackend = factory(name)(host=host, build=build)
    torch = fake_torch(made.torch_name, made.graph_class)
    monkeypatch.setitem(sys.modules, "torch", torch)
    for module in modules:
        monkeypatch.setitem(sys.modules, module, torch)
    return made


def test_at_most_twelve_public_methods(backend: HardwareBackend) -> None:
    protocol = {name for name, _ in inspect.getmembers(HardwareBackend, inspect.isfunction) if not name.startswith("_")}
    assert len(protocol) <= 12
    assert all(callable(getattr(backend, name)) for name in protocol)


def test_devices_are_whole_and_in_bus_order(backend: HardwareBackend) -> None:
    assert backend.availability().available
    devices = backend.devices()
    assert devices
    assert [each.index for each in devices] == list(range(len(devices)))
    addresses = [each.pci_bus_id or "" for each in devices]
    assert addresses == sorted(addresses)
    for each in devices:
        assert each.name not in ("", "unknown")
        assert each.architecture not in ("", "unknown")


def test_capabilities_are_consistent(backend: HardwareBackend) -> None:
    for device in backend.devices():
        capabilities = backend.capabilities(device)
        assert capabilities.dtypes <= DTYPES
        assert capabilities.preferred_dtype in capabilities.dtypes
        assert "float32" in capabilities.dtypes
        assert capabilities.supports_flash_attention == capabilities.flash_attention
        assert all(size > 0 and size & (size - 1) == 0 for size in capabilities.block_sizes)


def test_activate_gives_a_device_that_answers(backend: HardwareBackend) -> None:
    device = backend.activate()
    assert device.partition(":")[0] in {"cuda", "xpu", "npu", "mlu", "mps", "cpu"}
    memory = backend.memory()
    assert 0 < memory.free_bytes <= memory.total_bytes
    backend.synchronize()
    graphs = backend.graphs()
    assert (graphs is not None) == backend.capabilities(backend.devices()[0]).graph_capture
    if graphs is not None:
        graph = graphs.new_graph()
        with graphs.capture(graph):
            pass
        graph.replay()
        assert graph.breakers == ("" if device.startswith("xpu") else "thread_local")  # not what other threads do


def test_telemetry_has_a_reading_for_each_device(backend: HardwareBackend) -> None:
    readings = backend.telemetry()
    assert [each.index for each in readings] == [each.index for each in backend.devices()]
    for each in readings:
        assert each.health is Health.HEALTHY
        assert each.temperature_celsius is None or -40 < each.temperature_celsius < 150
        assert each.utilization_ratio is None or 0 <= each.utilization_ratio <= 1
        assert each.memory_total_bytes is None or each.memory_total_bytes > GIB


def test_collectives_have_a_name(backend: HardwareBackend) -> None:
    assert backend.communication().name in {"nccl", "gloo", "xccl", "hccl", "cncl"}


@pytest.mark.parametrize("name", MACHINE_OF)
def test_an_empty_machine_is_unavailable_with_a_reason(name: str, tmp_path: Path) -> None:
    empty = factory(name)(host=Host(root=tmp_path, run=lambda command, timeout: ToolResult(problem="none")))
    assert not empty.availability().available
    assert empty.availability().reason
    assert (empty.devices(), empty.telemetry()) == ((), ())
    with pytest.raises(BackendUnavailable, match=f"backend {name} is not available: "):
        empty.activate()


@pytest.mark.parametrize("name", MACHINE_OF)
@pytest.mark.parametrize(
    "answer",
    [
        ToolResult(problem="tool did not answer within 5 s"),
        ToolResult(problem="tool was killed by signal 11"),
        ToolResult("\x00garbage | | |\n" * 9),
        ToolResult("", exit_status=255),
    ],
    ids=["hangs", "crashes", "garbage", "silent"],
)
def test_a_broken_probe_makes_devices_unhealthy(name: str, answer: ToolResult, tmp_path: Path) -> None:
    host, _, _ = described(load_machine(MACHINE_OF[name]), tmp_path)
    broken = factory(name)(Host(root=host.root, run=lambda command, timeout: answer, platform=host.platform))
    readings = broken.telemetry()
    assert readings
    assert all(each.health is Health.UNHEALTHY and each.reason for each in readings)


@pytest.mark.parametrize("name", [name for name in MACHINE_OF if name != "mps"])  # macOS's tools need no privilege
def test_a_tool_that_needs_root_leaves_health_unknown_and_says_so(name: str, tmp_path: Path) -> None:
    def refuse(command: Any, timeout: float) -> ToolResult:
        if "polyfleet.backends.library_probe" in command:
            return ToolResult('{"absent": "the library can\'t be loaded"}')
        return ToolResult(f"{command[0]}: error: this needs root privileges, try again with sudo\n", exit_status=1)

    host, build, _ = described(load_machine(MACHINE_OF[name]), tmp_path)
    backend = factory(name)(Host(root=host.root, run=refuse, platform=host.platform), build)
    readings = backend.telemetry()
    assert readings
    for each in readings:
        assert each.health is Health.UNKNOWN
        assert "needs more privilege here" in each.reason
        assert "root privileges" in each.reason


@pytest.mark.parametrize("name", ["ascend", "hygon", "xpu", "mps"])
def test_a_tool_that_hangs_half_way_makes_devices_unhealthy(name: str, tmp_path: Path) -> None:
    machine = load_machine(MACHINE_OF[name])
    if name == "xpu":  # of version 1, which is asked for each device in turn
        machine["tools"] = {
            "xpu-smi": {"output": "Intel XPU System Management Interface -- v1.3"},
            "xpu-smi discovery -j": {"sample": "xpu-smi_v1_discovery.json"},
            "xpu-smi stats*": {"hang": True},
        }
    else:
        others = list(machine["tools"])[1:]
        machine["tools"].update({tool: {"hang": True} for tool in others})
    host, build, _ = described(machine, tmp_path)
    readings = factory(name)(host, build).telemetry()
    assert readings
    for each in readings:
        assert each.health is Health.UNHEALTHY
        assert "did not answer within 5 s" in each.reason


def test_a_broken_probe_makes_a_device_unhealthy_that_only_its_node_shows(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidia0").touch()
    hangs = ToolResult(problem="nvidia-smi did not answer within 5 s")
    backend = factory("cuda")(Host(root=tmp_path, run=lambda command, timeout: hangs))
    (reading,) = backend.telemetry()
    assert (reading.index, reading.health, reading.reason) == (0, Health.UNHEALTHY, hangs.problem)


VISIBLE = {
    "cuda": {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "1,0"},
    "rocm": {"HIP_VISIBLE_DEVICES": "1,0", "CUDA_VISIBLE_DEVICES": "1,0"},
    "hygon": {"HIP_VISIBLE_DEVICES": "1,0", "CUDA_VISIBLE_DEVICES": "1,0"},
    "ascend": {"ASCEND_RT_VISIBLE_DEVICES": "0,1", "PYTORCH_NPU_ALLOC_CONF": "expandable_segments:True"},
    "cambricon": {"MLU_VISIBLE_DEVICES": "1,0"},
    "xpu": {"ZE_AFFINITY_MASK": "1,0", "ZE_FLAT_DEVICE_HIERARCHY": "FLAT"},
    "mps": {},
}


@pytest.mark.parametrize("name", VISIBLE)
def test_environment_of_chosen_devices(name: str) -> None:
    assert factory(name)(Host(environ={})).environment([1, 0]) == VISIBLE[name]


@pytest.mark.parametrize(
    ("present", "chosen"), [("4,6", "6,4"), ("GPU-aa, MIG-bb", "MIG-bb,GPU-aa"), ("", "1,0"), ("5", "1,5")]
)
def test_environment_speaks_of_the_devices_that_were_left(present: str, chosen: str) -> None:
    host = Host(environ={"CUDA_VISIBLE_DEVICES": present})
    assert factory("cuda")(host).environment([1, 0])["CUDA_VISIBLE_DEVICES"] == chosen


@pytest.mark.parametrize(
    ("variable", "addresses"),
    [
        ("1", ["0000:2a:00.0"]),
        ("1,0", ["0000:2a:00.0", "0000:18:00.0"]),
        ("GPU-00000001", ["0000:2a:00.0"]),
        ("0,7", ["0000:18:00.0"]),
        ("7,0", []),
        ("1,GPU-nobody,0", ["0000:2a:00.0"]),
        ("MIG-3b7c2a1e", ["0000:2a:00.0"]),
        ("MIG-3b7c2a1e,0", ["0000:2a:00.0", "0000:18:00.0"]),
        ("1.0", ["0000:2a:00.0"]),
        ("MIG-ffffffff", [None]),
    ],
)
def test_devices_are_those_that_the_process_may_see_numbered_as_torch_does(
    variable: str, addresses: list[str | None], tmp_path: Path
) -> None:
    machine = {**load_machine("linux_nvidia_h100_x2"), "environ": {"CUDA_VISIBLE_DEVICES": variable}}
    machine["tools"]["nvidia-smi -L"] = {"output": MIG_LIST}
    host, build, _ = described(machine, tmp_path)
    backend = factory("cuda")(host=host, build=build)
    assert [each.pci_bus_id for each in backend.devices()] == addresses
    assert [each.index for each in backend.devices()] == list(range(len(addresses)))
    assert [each.pci_bus_id for each in backend.telemetry()] == addresses


@pytest.mark.parametrize("variable", ["", "-1"])
def test_a_process_that_may_see_none_is_told_so(variable: str, tmp_path: Path) -> None:
    machine = {**load_machine("linux_nvidia_h100_x2"), "environ": {"CUDA_VISIBLE_DEVICES": variable}}
    host, build, _ = described(machine, tmp_path)
    backend = factory("cuda")(host=host, build=build)
    assert backend.availability().reason == "CUDA_VISIBLE_DEVICES hides every NVIDIA device"
    assert (backend.devices(), backend.telemetry()) == ((), ())


def test_listing_backends_imports_no_torch_and_no_vendor_module() -> None:
    code = (
        "import sys\n"
        "import polyfleet.backends as b\n"
        "b.BackendRegistry.list_available(); b.BackendRegistry.discover()\n"
        "[b.BackendRegistry.known(name).telemetry() for name in b.BackendRegistry.names()]\n"
        "assert not {'torch', 'torch_npu', 'torch_mlu', 'pyzes'} & set(sys.modules), sorted(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_cpu_cores_follow_the_cgroup(tmp_path: Path) -> None:
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    limit = tmp_path / "sys/fs/cgroup/cpu.max"
    limit.write_text("100000 100000\n")
    assert usable_cores(tmp_path) == 1
    limit.write_text("max 100000\n")
    assert usable_cores(tmp_path) == usable_cores(Path("/nonexistent"))


def test_cpu_memory_follows_the_cgroup(tmp_path: Path) -> None:
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 8388608 kB\nMemAvailable: 6291456 kB\n")
    (tmp_path / "sys/fs/cgroup/memory.max").write_text(str(2 * GIB))
    (tmp_path / "sys/fs/cgroup/memory.current").write_text(str(GIB // 2))
    memory = CpuBackend(tmp_path).memory()
    assert (memory.free_bytes, memory.total_bytes) == (GIB * 3 // 2, 2 * GIB)


def test_unknown_name_lists_the_names() -> None:
    with pytest.raises(BackendUnavailable, match="no backend 'tpu': choose auto or one of cuda, rocm"):
        BackendRegistry.get("tpu")
    assert BackendRegistry.find("tpu") is None

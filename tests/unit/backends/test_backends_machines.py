"""Described machines: what is found, what is picked, and what is said of devices that can't be trusted."""

from importlib import import_module
from pathlib import Path

import pytest
from tests.support.described_host import DATA, described, load_machine

from polyfleet.backends import registry, torch_build
from polyfleet.backends.accelerator import AcceleratorBackend
from polyfleet.backends.cuda import QUERY, CudaBackend, parse_query
from polyfleet.backends.host import ToolResult
from polyfleet.backends.protocol import Health
from polyfleet.backends.reading import ProbeResult
from polyfleet.backends.registry import BUILT_IN, BackendRegistry
from polyfleet.backends.torch_build import TorchBuild

MACHINES = sorted(path.stem for path in (DATA / "machines").glob("*.json"))
ACCELERATORS = [name for name in BUILT_IN if name not in ("cpu", "vulkan")]


@pytest.fixture(autouse=True)
def fresh_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BackendRegistry, "_instances", {})


def put_on(machine_name: str, root: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, AcceleratorBackend]:
    """Make the registry's accelerator backends see the described machine."""
    machine = load_machine(machine_name)
    host, build, _ = described(machine, root)
    modules = set(machine.get("modules", []))
    monkeypatch.setattr(torch_build, "find_spec", lambda name: object() if name in modules else None)
    found = {}
    for name in ACCELERATORS:
        import_module(BUILT_IN[name])
        factory = BackendRegistry._factories[name]
        found[name] = factory(host=host, build=build)  # type: ignore[call-arg]
        BackendRegistry._instances[name] = found[name]
    monkeypatch.setattr(registry, "BUILT_IN", {name: BUILT_IN[name] for name in (*ACCELERATORS, "cpu")})
    return found  # type: ignore[return-value]


@pytest.mark.parametrize("machine", MACHINES)
def test_finds_what_the_machine_has(machine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backends = put_on(machine, tmp_path, monkeypatch)
    expected = load_machine(machine)["expect"]
    assert list(BackendRegistry.list_available()) == expected["available"]
    assert BackendRegistry.get_default().type == expected["default"]
    for name, backend in backends.items():
        if name in expected["devices"]:
            assert [each.pci_bus_id for each in backend.devices()] == expected["devices"][name]
            assert [each.index for each in backend.devices()] == list(range(len(expected["devices"][name])))
        else:
            assert not backend.availability().available
            assert backend.availability().reason


@pytest.mark.parametrize("machine", MACHINES)
def test_untrusted_devices_are_unhealthy(machine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backends = put_on(machine, tmp_path, monkeypatch)
    expected = load_machine(machine)["expect"].get("unhealthy", {})
    for name, backend in backends.items():
        readings = backend.telemetry()
        if name in expected:
            assert readings
            assert all(each.health is Health.UNHEALTHY and expected[name] in each.reason for each in readings)
        else:
            assert all(each.health is not Health.UNHEALTHY for each in readings)


def test_hygon_is_never_taken_for_amd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backends = put_on("linux_hygon_bw_x2", tmp_path, monkeypatch)
    assert not backends["rocm"].availability().available
    (first, _) = backends["hygon"].devices()
    assert (first.name, first.architecture, first.driver_version) == ("BW100", "gfx936", "6.3.31-V1.5.0a")
    assert first.total_memory_bytes == 65520 * 2**20


def test_reason_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backends = put_on("linux_nvidia_with_cpu_torch", tmp_path, monkeypatch)
    assert backends["cuda"].availability().reason == (
        "an NVIDIA device is present, but torch 2.13.0+cpu is a CPU build: install a CUDA build"
    )


def test_of_two_vendors_the_one_that_torch_was_built_for_is_used_and_the_other_says_why_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backends = put_on("linux_mixed_nvidia_amd", tmp_path, monkeypatch)
    assert BackendRegistry.get_default() is backends["cuda"]
    assert backends["rocm"].availability().reason == (
        "an AMD device is present, but torch 2.11.0 has no HIP: install a ROCm build"
    )
    (reading,) = backends["rocm"].telemetry()
    assert (reading.pci_bus_id, reading.health) == ("0000:05:00.0", Health.HEALTHY), "it is watched all the same"


@pytest.mark.parametrize(
    ("build", "kind"),
    [
        (TorchBuild("2.11.0", hip="7.0"), "a ROCm"),
        (TorchBuild("2.13.0", xpu="2026"), "an XPU"),
        (TorchBuild("2"), "a CPU"),
    ],
)
def test_a_torch_without_cuda_is_named_for_what_it_is(build: TorchBuild, kind: str, tmp_path: Path) -> None:
    host, _, _ = described(load_machine("linux_nvidia_h100_x2"), tmp_path)
    assert f"is {kind} build: install a CUDA build" in CudaBackend(host, build).availability().reason


def test_kfd_topology_names_the_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (device,) = put_on("linux_amd_mi300x", tmp_path, monkeypatch)["rocm"].devices()
    assert (device.name, device.architecture, device.cores) == ("AMD Instinct MI300X", "gfx942", 38)
    assert (device.uuid, device.driver_version) == ("GPU-e3aa140f9a5f9e31", "6.10.5")
    assert device.total_memory_bytes == 206141652992


def test_capabilities_follow_the_device_not_the_family(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = put_on("linux_nvidia_wrong_index_order", tmp_path, monkeypatch)["cuda"]
    h100, t4 = (backend.capabilities(each) for each in backend.devices())
    assert {"bfloat16", "float8_e4m3fn"} <= h100.dtypes
    assert not {"bfloat16", "float8_e4m3fn"} & t4.dtypes
    assert (h100.preferred_dtype, t4.preferred_dtype) == ("bfloat16", "float16")


@pytest.mark.parametrize("output", ["[1]", "9" * 5000, "HCU  Temp\n²  1\n0  1\n", '{"card0": 1}', "null"])
@pytest.mark.parametrize("machine", [name for name in MACHINES if name.endswith("_x2")])
def test_whatever_a_tool_prints_no_probe_raises(
    machine: str, output: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = load_machine(machine)
    for name in plain["tools"]:
        description = {**plain, "tools": {**plain["tools"], name: {"output": output}}}
        root = tmp_path / str(len(list(tmp_path.iterdir())))
        host, build, _ = described(description, root)
        for accelerator in ACCELERATORS:
            import_module(BUILT_IN[accelerator])
            backend = BackendRegistry._factories[accelerator](host=host, build=build)  # type: ignore[call-arg]
            assert isinstance(backend.availability().reason, str)
            for device in backend.devices():
                assert backend.capabilities(device).dtypes
            for reading in backend.telemetry():
                assert reading.health in Health


@pytest.mark.parametrize(("word", "health"), [("", Health.UNHEALTHY), ("must be root ", Health.UNKNOWN)])
def test_a_reason_repeats_little_of_what_a_tool_printed_and_no_control_character(
    word: str, health: Health, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = put_on("linux_nvidia_h100_x2", tmp_path, monkeypatch)["cuda"]
    garbage = ToolResult(f"\x1b[2J\x07{word}" + "z" * 10_000)
    monkeypatch.setattr(backend, "probe", lambda: parse_query(garbage, QUERY))
    reading = backend.telemetry()[0]
    assert reading.health is health
    assert f"\ufffd[2J\ufffd{word}zzz" in reading.reason
    assert len(reading.reason) < 200


def test_a_parser_that_breaks_makes_its_devices_unhealthy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = put_on("linux_nvidia_h100_x2", tmp_path, monkeypatch)["cuda"]

    def breaks() -> ProbeResult:
        raise KeyError("Temp")

    monkeypatch.setattr(backend, "probe", breaks)
    assert backend.devices() == ()
    assert [each.health for each in backend.telemetry()] == [Health.UNHEALTHY] * 2
    assert "NVIDIA's tool printed can't be understood (KeyError: 'Temp')" in backend.telemetry()[0].reason
    assert backend.availability().reason == backend.telemetry()[0].reason

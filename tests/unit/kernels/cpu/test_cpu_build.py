"""The build hook's C++ part: what is compiled where, and what happens where nothing can be compiled."""

import importlib.util
import shutil
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[4]
Objects = dict[str, tuple[list[str], list[str]]]

pytest.importorskip("hatchling", reason="hatchling is not installed")


@pytest.fixture
def hook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """hatch_build.py over two small sources of its own."""
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name in ("one", "two", "kernels_avx2", "kernels_avx512"):
        (tmp_path / f"{name}.cpp").write_text(f'extern "C" int {name}() {{ return 1; }}\n')
    monkeypatch.setattr(module, "CPU_ENGINE", tmp_path)
    return module


def with_machine(monkeypatch: pytest.MonkeyPatch, hook: ModuleType, machine: str) -> Objects:
    monkeypatch.setattr(hook.platform, "machine", lambda: machine)
    objects: Objects = hook.engine_objects()
    return objects


def test_instruction_sets_have_objects_of_their_own(hook: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    objects = with_machine(monkeypatch, hook, "x86_64")
    assert set(objects) == {"baseline", "kernels_avx2", "kernels_avx512", "kernels_avx512bf16", "kernels_amx"}
    assert objects["baseline"] == (["one", "two"], [])
    assert "-mavx512bf16" in objects["kernels_avx512bf16"][1]
    assert "-mavx512bf16" not in objects["kernels_avx512"][1]
    assert [name for name, (_, flags) in objects.items() if "-mamx-int8" in flags] == ["kernels_amx"]
    assert not any("512" in flag for flag in objects["kernels_avx2"][1])


def test_other_machines_compile_plain_sources_only(hook: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    objects = with_machine(monkeypatch, hook, "aarch64")
    assert objects == {"baseline": (["one", "two"], [])}


@pytest.mark.skipif(shutil.which("c++") is None, reason="there is no C++ compiler")
def test_a_library_is_built(hook: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hook, "X86_OBJECTS", {})
    for name in ("kernels_avx2", "kernels_avx512"):
        (hook.CPU_ENGINE / f"{name}.cpp").unlink()
    tag = hook.build_engine()
    assert tag.startswith(("manylinux_2_", "linux_", "macosx_"))
    assert list(hook.CPU_ENGINE.glob("libpolyfleet_cpu.*"))


def test_without_a_working_compiler_installation_goes_on(
    hook: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = tmp_path / "broken-compiler"
    broken.write_text("#!/bin/sh\necho 'one.cpp: no such language' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CXX", str(broken))
    assert hook.build_engine() is None
    printed = capsys.readouterr().err
    assert "one.cpp: no such language" in printed
    assert "The CPU library could not be compiled (see above): CPU workers will run on torch alone." in printed
    assert not list(hook.CPU_ENGINE.glob("libpolyfleet_cpu.*"))


def test_a_machine_without_compiler_takes_zig(hook: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(hook.shutil, "which", lambda _: None)
    monkeypatch.setattr(hook.sys, "platform", "linux")
    assert hook.machine_compiler() == []
    assert hook.PolyfleetBuildHook.dependencies(None) == [hook.ZIG]
    monkeypatch.setattr(hook.shutil, "which", lambda name: f"/usr/bin/{name}")
    assert hook.PolyfleetBuildHook.dependencies(None) == []

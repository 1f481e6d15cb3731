"""Build hook: before anything is packed, generates gRPC code beside the .proto files and compiles the CPU library."""

import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).parent
CPU_ENGINE = ROOT / "workers" / "polyfleet" / "kernels" / "cpu"

CXX_FLAGS = ["-std=c++17", "-O3", "-ffp-contract=off", "-fPIC", "-fvisibility=hidden"]
AVX512_FLAGS = ["-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512vnni", "-mfma", "-mf16c"]
# Objects of x86-64 that need more than its baseline: object -> (source, flags), those that take longest first.
X86_OBJECTS = {
    "kernels_amx": ("kernels_avx512", [*AVX512_FLAGS, "-mavx512bf16", "-mamx-tile", "-mamx-int8", "-mamx-bf16"]),
    "kernels_avx512bf16": ("kernels_avx512", [*AVX512_FLAGS, "-mavx512bf16"]),
    "kernels_avx512": ("kernels_avx512", AVX512_FLAGS),
    "kernels_avx2": ("kernels_avx2", ["-mavx2", "-mfma", "-mf16c"]),
}
ZIG = "ziglang==0.15.2"
ZIG_GLIBC = "2.28"


def generate_protos() -> None:
    """Run protoc over every .proto; raises RuntimeError when it refuses one."""
    import grpc_tools
    from grpc_tools import protoc

    well_known = Path(grpc_tools.__file__).parent / "_proto"
    sources = sorted(str(path.relative_to(ROOT / "proto")) for path in (ROOT / "proto").rglob("*.proto"))
    scripts = Path(sys.executable).parent
    plugin = shutil.which("protoc-gen-mypy") or str(scripts / "protoc-gen-mypy")
    out = str(ROOT / "proto")
    arguments = ["protoc", f"-I{out}", f"-I{well_known}", f"--python_out={out}", f"--grpc_python_out={out}"]
    arguments += [f"--plugin=protoc-gen-mypy={plugin}", f"--mypy_out=quiet:{out}", *sources]
    if protoc.main(arguments) != 0:
        raise RuntimeError("protoc failed; its message stands above")


def machine_compiler() -> list[str]:
    """The C++ compiler of this machine; empty when it has none."""
    names = [os.environ["CXX"]] if os.environ.get("CXX") else ["c++", "g++", "clang++"]
    return next(([path] for name in names if (path := shutil.which(name))), [])


def zig_compiler() -> list[str]:
    """Zig's C++ compiler, against an old glibc, as the package `ziglang` brings it."""
    return [sys.executable, "-m", "ziglang", "c++", "-target", f"{platform.machine()}-linux-gnu.{ZIG_GLIBC}"]


def zig_flags(flags: list[str]) -> list[str]:
    """Zig turns 512-bit vectors off for its baseline processor unless told otherwise."""
    return [*flags, "-g0", "-mevex512"] if "-mavx512f" in flags else [*flags, "-g0"]


def engine_objects() -> dict[str, tuple[list[str], list[str]]]:
    """What the engine is linked of on this machine: object -> (its sources, extra flags).

    What keeps to the baseline is one object, since half of the time for each by itself goes to the standard headers.
    """
    above = X86_OBJECTS if platform.machine() in ("x86_64", "AMD64") else {}
    apart = {source for source, _ in X86_OBJECTS.values()}
    baseline = [path.stem for path in sorted(CPU_ENGINE.glob("*.cpp")) if path.stem not in apart]
    return {"baseline": (baseline, []), **{name: ([source], flags) for name, (source, flags) in above.items()}}


def compile_engine(compiler: list[str]) -> Path:
    """Compile and link the CPU library beside its sources; raises CalledProcessError with the compiler's output."""
    library = CPU_ENGINE / f"libpolyfleet_cpu.{'dylib' if sys.platform == 'darwin' else 'so'}"
    zig = "ziglang" in compiler
    static = [] if zig or sys.platform == "darwin" else ["-static-libstdc++", "-static-libgcc"]

    def run(*arguments: str) -> None:
        subprocess.run([*compiler, *arguments], check=True, capture_output=True, text=True)

    def compile_one(build: Path, name: str, sources: list[str], flags: list[str]) -> str:
        unit, target = build / f"{name}.cpp", str(build / f"{name}.o")
        unit.write_text("".join(f'#include "{CPU_ENGINE / source}.cpp"\n' for source in sources), encoding="utf-8")
        run(*CXX_FLAGS, *(zig_flags(flags) if zig else flags), "-c", str(unit), "-o", target)
        return target

    with TemporaryDirectory() as build, ThreadPoolExecutor(os.cpu_count()) as pool:
        compiling = [
            pool.submit(compile_one, Path(build), name, sources, flags)
            for name, (sources, flags) in engine_objects().items()
        ]
        objects = [each.result() for each in compiling]
        run("-shared", "-o", f"{build}/{library.name}", *objects, *static, "-pthread")
        shutil.copy(f"{build}/{library.name}", f"{library}.new")
    os.replace(f"{library}.new", library)  # a running process keeps the old one
    return library


def build_engine() -> str | None:
    """Build the CPU library; gives the platform of the wheel's tag, or None behind a printed sentence."""
    machine, compiler = platform.machine(), machine_compiler()
    try:
        compile_engine(compiler or zig_compiler())
    except (OSError, subprocess.CalledProcessError) as error:
        print(getattr(error, "stderr", None) or error, file=sys.stderr)
        message = "The CPU library could not be compiled (see above): CPU workers will run on torch alone."
        print(message, file=sys.stderr)
        return None
    if sys.platform != "linux":
        return sysconfig.get_platform().replace("-", "_").replace(".", "_")
    glibc = platform.libc_ver()[1] if compiler else ZIG_GLIBC
    return f"manylinux_{glibc.replace('.', '_')}_{machine}" if glibc else f"linux_{machine}"


class PolyfleetBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """Runs for wheels and for editable installs alike."""

    def dependencies(self) -> list[str]:
        """A compiler, when the machine has none."""
        return [] if machine_compiler() or sys.platform != "linux" else [ZIG]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Generate and compile before hatchling collects files."""
        generate_protos()
        if tag := build_engine():
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{tag}"

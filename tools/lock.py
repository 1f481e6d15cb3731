"""Write requirements.lock: exact versions for Python 3.10 to 3.13 on x86-64 and arm64 (`make lock`; needs 3.11).

The lock is used as constraints (`pip install -c`). torch is pinned; what only torch's CUDA build needs is left out, so
that the file serves CPU machines and vendor images alike. Beside it, tests/data/macos_arm64_wheels.txt records which
wheels a Mac's agent is installed from within the lock: no test has a Mac.
"""

import importlib
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
LOCK = ROOT / "requirements.lock"
MAC_WHEELS = ROOT / "tests" / "data" / "macos_arm64_wheels.txt"
MAC_EXTRA, MACOS, PYTHONS = "cpu", "14.0", ("3.10", "3.11", "3.12", "3.13")
EXTRAS = ("serve", "vulkan", "dev")
VENDOR_PACKAGE = re.compile(r"^(nvidia|cuda|triton|intel|onemkl|tbb)\b")
HEADER = """\
# Exact versions for Python 3.10 to 3.13 on x86-64 and arm64. Made by `make lock`; used as `pip install -c`.
"""


def tools() -> list[str]:
    """What is needed to build Polyfleet itself, and what installs it and more."""
    tomllib = importlib.import_module("tomllib")
    document = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    requires: list[str] = document["build-system"]["requires"]
    return [*requires, "uv", "pip"]


def compile_lock() -> str:
    """Resolve the extras that `make` installs and its tools together, for every platform at once."""
    command = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--universal", "--python-version", "3.10"]
    command += ["--no-header", "--no-annotate", "--no-emit-index-url"]
    command += [word for extra in EXTRAS for word in ("--extra", extra)]
    done = subprocess.run(
        [*command, "pyproject.toml", "-"],
        cwd=ROOT,
        input="\n".join(tools()),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return done.stdout


def mac_wheels(python: str) -> list[str]:
    """Names of the wheels from which the agent is installed on a Mac with this Python, within the lock."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "pylock.mac.toml"
        command = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--extra", MAC_EXTRA, "pyproject.toml"]
        command += ["--python-platform", "aarch64-apple-darwin", "--python-version", python, "--only-binary", ":all:"]
        command += ["--constraint", str(LOCK), "--format", "pylock.toml", "--output-file", str(out)]
        subprocess.run(command, cwd=ROOT, check=True, env=os.environ | {"MACOSX_DEPLOYMENT_TARGET": MACOS})
        return sorted(re.findall(r"/([^/\s\"]+\.whl)", out.read_text(encoding="utf-8")))


def main() -> None:
    """Write the lock file and the Mac's wheels, and say how many packages are pinned."""
    lines = [line for line in compile_lock().splitlines() if not VENDOR_PACKAGE.match(line)]
    LOCK.write_text(HEADER + "\n".join(lines) + "\n", encoding="utf-8")
    wheels = [f"{python} {wheel}" for python in PYTHONS for wheel in mac_wheels(python)]
    MAC_WHEELS.write_text("\n".join(wheels) + "\n", encoding="utf-8")
    print(f"requirements.lock pins {len(lines)} packages")


if __name__ == "__main__":
    main()

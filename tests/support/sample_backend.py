"""The third party's backend of tests/data/sample_backend, installed in a folder, and a machine that has its device."""

import os
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "data" / "sample_backend"
LISTED = "0,Sample One,16384 MiB,41 C"


def install(target: Path) -> Path:
    """Install the package there, as a vendor's would be beside Polyfleet."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*command, "--target", str(target), str(SOURCE)], check=True, timeout=120)
    return target


def environment(site: Path, machine: Path) -> dict[str, str]:
    """Variables of a process on a machine with one device: its vendor's tool and torch extension are there."""
    (machine / "torch_sample.py").write_text("")
    tool = machine / "samplectl"
    tool.write_text(f"#!/bin/sh\necho '{LISTED}'\n")
    tool.chmod(0o755)
    path = os.pathsep.join((str(machine), os.environ["PATH"]))
    return {"PYTHONPATH": os.pathsep.join((str(site), str(machine))), "PATH": path}

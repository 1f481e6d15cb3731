"""Triton's kernels under its interpreter, in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

triton = pytest.importorskip("triton")

ROOT = Path(__file__).parents[4]


@pytest.mark.skipif(not triton.__version__.startswith("3.6."), reason="other versions' interpreters round otherwise")
@pytest.mark.timeout(900)  # all of them in one: several times the 90 s that they take alone, beside others
@pytest.mark.parametrize("which", ["not slow", pytest.param("slow", marks=pytest.mark.slow)])
def test_interpreted(which: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", which, "tests/interpreted"]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert " passed" in done.stdout

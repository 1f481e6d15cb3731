"""Loading takes little more memory at its peak than stays."""

import json
import sys
from pathlib import Path
from subprocess import run

import pytest
from bench.loading import MOST, write

LAYERS = 12  # of which the largest matrix is a sixtieth


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "executor"),
    [("bf16", "persistent"), ("int4 groups", "persistent"), ("fp8 tiles", "persistent"), ("int8 channels", "eager")],
)
def test_loading_peaks_little_above_what_stays(name: str, executor: str, tmp_path: Path) -> None:
    model = write(tmp_path / "model", name, LAYERS)
    command = [sys.executable, "-m", "bench.loading", "--load", str(model), "--executor", executor]
    found = json.loads(run(command, check=True, capture_output=True, text=True).stdout)
    assert found["stays"] > 50e6, "the model itself is there"
    assert found["peak"] <= MOST * found["stays"]

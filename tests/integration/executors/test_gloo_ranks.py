"""Two processes that sum up over gloo compute what one does, for every architecture."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.shared_models import CPU, TOLERANCE, compute, compute_all, workload

from polyfleet.backends.cpu import usable_cores
from polyfleet.executors.ranks.collectives import DistributedRanks
from polyfleet.models.registry import ARCHITECTURES

ROOT = Path(__file__).parents[3]


@pytest.mark.slow
@pytest.mark.skipif(usable_cores() < 2, reason="ranks have a core each")
def test_two_processes_equal_one_for_every_architecture(tmp_path: Path) -> None:
    """One pair of processes for all; what can't be shared evenly is refused, which tests of ranks try."""
    store = str(tmp_path / "store")
    other = subprocess.Popen([sys.executable, "-m", "tests.support.shared_models", store], cwd=ROOT)
    try:
        ranks = DistributedRanks("gloo", store, 0, 2, CPU)
        try:
            found = compute_all(ranks)
        finally:
            ranks.leave()
        assert other.wait(60) == 0
    finally:
        other.kill()
        other.wait()
    assert found.keys() == ARCHITECTURES.keys()
    for name, results in found.items():
        for mine, expected in zip(results, compute(workload(name)), strict=True):
            difference = (mine - expected).abs().max().item()
            assert difference <= TOLERANCE * (1 + expected.abs().max().item()), name

"""`polyfleet info` says which instruction sets the CPU library found, or that torch runs alone, and why."""

from typing import Any

import pytest
from click.testing import CliRunner

from polyfleet.cli.commands import info
from polyfleet.cli.main import cli


@pytest.mark.parametrize(
    ("library", "line"),
    [
        ({"available": True, "instruction_sets": ["avx2", "plain"]}, "CPU library avx2 plain"),
        ({"available": False, "reason": "it was not built"}, "CPU library torch alone: it was not built"),
    ],
)
def test_the_cpu_library_has_a_line(library: dict[str, Any], line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"accelerators": [], "cpu_library": library, "operators": {"linear": "cpu avx2"}, "problem": ""}
    monkeypatch.setattr(info, "probe", lambda: found)
    result = CliRunner().invoke(cli, ("info",))
    assert result.exit_code == 0
    assert line in result.stdout

"""A backend in a package of its own is found through its entry point, with its reason or its devices."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SAMPLE = Path(__file__).parent.parent / "data" / "sample_backend"
QUESTION = """
import json
from polyfleet.backends import BackendRegistry as R
backend = R.known("sample")
print(json.dumps({"names": R.names(), "reason": backend.availability().reason, "default": R.get_default().type.value,
    "devices": [each.name for each in backend.devices()], "available": R.list_available()}))
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*command, "--target", str(target), str(SAMPLE)], check=True, timeout=120)
    return target


def ask(site: Path, tools: Path | None = None) -> dict[str, object]:
    path = f"{tools}{os.pathsep}{os.environ['PATH']}" if tools else os.environ["PATH"]
    environment = {**os.environ, "PYTHONPATH": str(site), "PATH": path}
    done = subprocess.run(
        [sys.executable, "-c", QUESTION], env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    answer: dict[str, object] = json.loads(done.stdout)
    return answer


def test_it_is_listed_behind_the_built_in_ones_and_says_why_it_is_absent(site: Path) -> None:
    answer = ask(site)
    assert isinstance(answer["names"], list)
    assert answer["names"][-1] == "sample"
    assert answer["reason"] == "no Sample device is present (PCI vendor 0xabcd)"
    assert answer["default"] == "cpu"


def test_it_may_break_at_import_without_breaking_the_others(site: Path, tmp_path: Path) -> None:
    broken = tmp_path / "site"
    subprocess.run(["cp", "-r", str(site), str(broken)], check=True)
    (broken / "polyfleet_sample" / "__init__.py").write_text("raise RuntimeError('no driver')\n")
    environment = {**os.environ, "PYTHONPATH": str(broken)}
    command = [sys.executable, "-m", "polyfleet.cli", "backends", "info", "--json"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60)
    facts = json.loads(done.stdout)
    assert facts["backends"]["cpu"]["available"]
    assert "no driver" in facts["backends"]["sample"]["reason"]

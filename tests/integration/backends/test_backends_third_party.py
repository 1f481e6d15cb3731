"""A backend in a package of its own is found through its entry point, with its reason or its devices."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.support.sample_backend import environment, install
from tests.support.tiny_models import TinyShape, write_gguf

QUESTION = """
import json
from polyfleet.backends import BackendRegistry as R
backend = R.known("sample")
print(json.dumps({"names": R.names(), "reason": backend.availability().reason, "default": R.get_default().type.value,
    "devices": [each.name for each in backend.devices()], "available": R.list_available()}))
"""
USE = """
import json
from polyfleet.backends import BackendOptimizer, BackendRegistry
config = BackendOptimizer().optimize("sample")
reading, = BackendRegistry.known("sample").telemetry()
facts = BackendOptimizer().system_info()["backends"]["sample"]["devices"]
print(json.dumps({"config": config, "heat": reading.temperature_celsius, "devices": [each["name"] for each in facts]}))
"""
COMPUTE = """
import json, sys
from polyfleet.engine import Engine, EngineOptions, generate_offline
engine = Engine.load(sys.argv[1], EngineOptions(device="sample"))
ask = lambda device: generate_offline(sys.argv[1], (3, 4, 5), device=device, dtype="float32").token_ids
answers = [ask("sample"), ask("cpu")]
print(json.dumps({"executor": engine.facts.executor, "answers": answers}))
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(tmp_path_factory.mktemp("site"))


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


BREAKS = {
    "at import": "raise RuntimeError('no driver')\n",
    "when made": "class SampleBackend:\n    def __init__(self):\n        raise RuntimeError('no driver')\n",
    "when asked": "class SampleBackend:\n    def availability(self):\n        raise RuntimeError('no driver')\n",
}


@pytest.mark.parametrize("code", BREAKS.values(), ids=BREAKS.keys())
def test_it_may_break_without_breaking_the_others(site: Path, tmp_path: Path, code: str) -> None:
    broken = tmp_path / "site"
    shutil.copytree(site, broken)
    (broken / "polyfleet_sample" / "__init__.py").write_text(code)
    environment = {**os.environ, "PYTHONPATH": str(broken)}

    def answer(*command: str) -> dict[str, Any]:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=120)
        loaded: dict[str, Any] = json.loads(done.stdout)
        return loaded

    facts = answer(sys.executable, "-m", "polyfleet.cli", "backends", "info", "--json")
    assert facts["backends"]["cpu"]["available"]
    assert not facts["backends"]["sample"]["available"]
    assert "no driver" in facts["backends"]["sample"]["reason"]
    probed = answer(sys.executable, "-m", "polyfleet.cli.probe")
    assert probed["problem"] == ""
    reasons = {each["name"]: each["reason"] for each in probed["accelerators"]}
    assert "no driver" in reasons["sample"]
    assert [each["name"] for each in probed["accelerators"] if each["default"]] == ["cpu"]


def test_its_devices_are_found_described_and_tuned_for(site: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", USE],
        env={**os.environ, **environment(site, tmp_path), "XDG_CONFIG_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    found = json.loads(done.stdout)
    assert (found["config"]["backend"], found["config"]["dtype"]) == ("sample", "auto")
    assert (found["heat"], found["devices"]) == (41.0, ["Sample One"])


def test_its_device_computes_with_the_executor_that_it_brings(site: Path, tmp_path: Path) -> None:
    model = tmp_path / "tiny.gguf"
    write_gguf(model, TinyShape(vocabulary=264))
    done = subprocess.run(
        [sys.executable, "-c", COMPUTE, str(model)],
        env={**os.environ, **environment(site, tmp_path), "XDG_CONFIG_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    found = json.loads(done.stdout)
    assert found["executor"] == "sample"
    sample, cpu = found["answers"]
    assert sample == cpu != []

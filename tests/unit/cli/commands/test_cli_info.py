"""`polyfleet info` survives a probe that hangs or breaks."""

import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from polyfleet.cli import probe
from polyfleet.cli.commands import info
from polyfleet.cli.main import cli
from polyfleet.kernels.cpu import library


def interpreter(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a shell script in the place of the Python that runs the probe."""
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(path))


@pytest.mark.parametrize("script", ["exit 3", "echo garbage", "kill -SEGV $$"])
def test_a_probe_that_breaks_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    interpreter(tmp_path, script, monkeypatch)
    assert info.probe()["problem"] == "the process that probes the devices broke"


def test_a_probe_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interpreter(tmp_path, "exec sleep 60", monkeypatch)
    assert "took over 0.2 s" in info.probe(seconds=0.2)["problem"]


def test_info_shows_what_the_probe_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = {"index": 0, "name": "EPYC", "architecture": "x86_64", "total_memory_bytes": 2**31, "cores": 2}
    device |= {"preferred_dtype": "bfloat16", "instruction_sets": ["avx2", "fma"]}
    cpu = {"name": "cpu", "reason": "", "default": True, "chosen": "chosen by auto", "devices": [device]}
    absent = {"name": "cuda", "reason": "no NVIDIA device is present", "default": False, "chosen": "", "devices": []}
    passed = ["fast: it is Monday"]
    found = {"accelerators": [absent, cpu], "operators": {"linear": "cpu avx2"}, "problem": ""}
    found |= {"executor": "persistent", "passed_over": passed, "speculation": "off: it is Monday, too"}
    interpreter(tmp_path, f"echo '{json.dumps(found)}'", monkeypatch)
    text = CliRunner().invoke(cli, ("info",)).stdout
    for part in (
        "no NVIDIA device is present",
        "available  chosen by auto",
        "EPYC, 2.0 GiB, computes in bfloat16",
        "avx2 fma",
        "linear",
        "cpu avx2",
        "Executor persistent",
        "passed over: fast: it is Monday",
        "Speculation off: it is Monday, too",
    ):
        assert part in text
    document = json.loads(CliRunner().invoke(cli, ("info", "--json")).stdout)
    assert document["accelerators"][1] == cpu
    assert document["packages"]["grpcio"]
    assert document["state_dir"].endswith("polyfleet")


@pytest.mark.parametrize(
    ("name", "sentence"), [("tpu", "There is no backend 'tpu': choose"), ("ascend", "Backend ascend can't be used: no")]
)
def test_a_choice_that_can_not_be_had_is_the_problem(
    name: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("POLYFLEET_BACKEND", name)
    found = info.probe(seconds=240.0)  # a busy machine takes its time
    assert found["problem"].startswith(sentence)
    assert found["problem"].endswith("(it was chosen by POLYFLEET_BACKEND).")
    assert not any(each["chosen"] for each in found["accelerators"])
    assert found["operators"] == {}
    assert "available" in found["cpu_library"]


def test_the_probe_says_why_an_executor_was_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setattr(library, "PATH", tmp_path / "absent.so")
    library.load.cache_clear()
    try:
        found = probe.operators()
    finally:
        library.load.cache_clear()
    assert found["executor"] == "eager"
    assert found["passed_over"][0].startswith("persistent: ")
    assert "was not built" in found["passed_over"][0]
    assert not found["operators"]["linear"].startswith("cpu ")

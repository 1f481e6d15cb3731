"""What the extras of pyproject.toml require."""

import sys
from importlib.metadata import requires

import pytest
from tests.support import requirements
from tests.support.helm_chart import ROOT

PROJECT = requirements.read((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_extras_within_extras_are_followed_and_nothing_is_printed_twice() -> None:
    found = requirements.required(PROJECT, ["serve", "dev"])
    assert len(found) == len(set(found))
    assert not [line for line in found if line.startswith("polyfleet")]
    assert {"click>=8.1", "uvicorn>=0.54,<0.55", "torch==2.13.0", "safetensors>=0.4.5"} <= set(found)
    assert [line for line in found if line.startswith("dumb-init") and "sys_platform" in line]


def test_the_installed_metadata_names_the_same() -> None:
    installed = {line.partition(";")[0].split("[")[0].lower() for line in requires("polyfleet") or []}
    names = {line.partition(";")[0].strip().lower() for line in requirements.required(PROJECT, ["serve"])}
    assert {each.split(">")[0].split("=")[0] for each in names} <= {
        each.split(">")[0].split("=")[0].split("<")[0].strip() for each in installed
    }


def test_python_3_10_reads_with_pips_own_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pip._vendor.tomli")
    monkeypatch.setitem(sys.modules, "tomllib", None)
    assert requirements.read((ROOT / "pyproject.toml").read_text(encoding="utf-8")) == PROJECT

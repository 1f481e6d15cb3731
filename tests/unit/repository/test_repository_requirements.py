"""tools/requirements.py prints what pip would install for the extras."""

import os
import pty
import subprocess
import sys
from importlib.metadata import requires

import pytest
from tests.support.helm_chart import ROOT
from tools import requirements

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


def installing(*, terminal: bool) -> str:
    """The command by which `make` would install what the extras require."""
    command = "make --dry-run --always-make .venv/.installed-serve"
    environ = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKE_TERMOUT")}
    if not terminal:
        done = subprocess.run(command.split(), cwd=ROOT, env=environ, capture_output=True, text=True, check=True)
        shown = done.stdout
    else:
        screen, keyboard = pty.openpty()
        with subprocess.Popen(command.split(), cwd=ROOT, env=environ, stdout=keyboard, stderr=keyboard) as process:
            os.close(keyboard)
            parts = list(iter(lambda: read(screen), b""))
        os.close(screen)
        assert process.returncode == 0
        shown = b"".join(parts).decode()
    (line,) = (each for each in shown.splitlines() if "--requirement" in each)
    return line.partition("& build=")[2]


def read(screen: int) -> bytes:
    """What comes next; nothing once the other side is closed."""
    try:
        return os.read(screen, 65536)
    except OSError:
        return b""


def test_make_shows_the_downloads_on_a_terminal_and_is_quiet_elsewhere() -> None:
    assert "--quiet" not in installing(terminal=True)
    assert "--quiet --quiet --progress-bar off" in installing(terminal=False)

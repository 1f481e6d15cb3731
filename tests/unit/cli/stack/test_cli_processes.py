"""Signals and child processes of `polyfleet serve`."""

import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from polyfleet.cli.stack import processes
from polyfleet.cli.stack.processes import (
    Stopped,
    descendants,
    end,
    end_all,
    hurry_at_signals,
    ignore_signals,
    spawn,
    stop_on_signals,
)

SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]
STUBBORN = [
    sys.executable,
    "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)",
]
PATIENT = [
    sys.executable,
    "-c",
    "import signal, sys, time; told = []\n"
    "signal.signal(signal.SIGTERM, lambda *_: sys.exit(7) if told else told.append(1)); print('up', flush=True)\n"
    "time.sleep(600)",
]


def wait_for_text(path: Path, text: str) -> None:
    while text not in (path.read_text() if path.exists() else ""):
        time.sleep(0.01)


@pytest.fixture
def handlers() -> Iterator[None]:
    """Of this process, as they were."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_first_signal_stops_and_the_next_ones_do_not_disturb(number: signal.Signals, handlers: None) -> None:
    calls: list[str] = []

    def serve() -> None:
        try:
            signal.raise_signal(number)
        finally:
            signal.raise_signal(number)
            signal.raise_signal(signal.SIGINT)
            calls.append("ended in peace")

    with pytest.raises(Stopped), stop_on_signals(lambda: calls.append("first")):
        serve()
    assert calls == ["first", "ended in peace"]
    signal.raise_signal(number)  # the process ends: nothing may give it another exit code


def test_handlers_come_back_after_ignoring() -> None:
    before = signal.getsignal(signal.SIGINT)
    with stop_on_signals(lambda: None):
        ignore_signals()
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) == before


def test_while_it_stops_further_signals_hurry_but_for_hangups() -> None:
    calls: list[str] = []
    with stop_on_signals(lambda: None):
        hurry_at_signals(lambda: calls.append("hurry"))
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
            signal.raise_signal(number)
    assert calls == ["hurry", "hurry"]


def test_a_spawned_process_writes_to_its_log_and_ends(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "child.log"
    child = spawn([sys.executable, "-c", "print('hello'); import sys; print('world', file=sys.stderr)"], log)
    assert child.wait() == 0
    assert log.read_text().splitlines() == ["hello", "world"]
    running = spawn(SLEEP, log)
    end(running)
    assert running.returncode == -signal.SIGTERM


def test_a_process_that_lets_its_work_finish_is_told_again_to_cut_it_off(tmp_path: Path) -> None:
    child = spawn(PATIENT, tmp_path / "log")
    wait_for_text(tmp_path / "log", "up")
    end(child, seconds=0.1)
    assert child.returncode == 7


def test_a_stubborn_process_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "CUT_SECONDS", 0.1)
    child = spawn(STUBBORN, tmp_path / "log")
    wait_for_text(tmp_path / "log", "up")
    end(child, seconds=0.1)
    assert child.returncode == -signal.SIGKILL


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="util-linux's setpriv is not installed")
def test_a_spawned_process_dies_with_its_parent(tmp_path: Path) -> None:
    script = (
        "import os, pathlib, sys; from polyfleet.cli.stack.processes import spawn; "
        f"print(spawn({SLEEP!r}, pathlib.Path({str(tmp_path / 'log')!r})).pid, flush=True); sys.stdin.read()"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert parent.stdout
    pid = int(parent.stdout.readline())
    command = Path(f"/proc/{pid}/cmdline")
    while b"time.sleep" not in command.read_bytes() or b"setpriv" in command.read_bytes():
        time.sleep(0.01)  # setpriv has not handed over yet
    parent.kill()
    parent.wait()
    with suppress(FileNotFoundError, ProcessLookupError):
        while command.read_bytes():
            time.sleep(0.01)


def test_descendants_are_known_and_ended() -> None:
    nested = f"import subprocess; subprocess.Popen({SLEEP!r}); print('up', flush=True); import time; time.sleep(600)"
    child = subprocess.Popen([sys.executable, "-c", nested], stdout=subprocess.PIPE, text=True)
    assert child.stdout
    assert child.stdout.readline() == "up\n"
    found = [each for each in descendants() if each.pid == child.pid or each.ppid() == child.pid]
    assert len(found) == 2
    end_all(found, seconds=0.1)
    assert [each for each in found if each.is_running() and each.status() != "zombie"] == []
    assert child.wait() in (0, -signal.SIGKILL)

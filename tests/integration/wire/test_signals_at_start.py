"""A signal at any moment of a start: the process is gone within seconds, and nothing of it is left."""

import asyncio
import os
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.support.fake_fleet import FakeFleet
from tests.support.helm_chart import CHART
from tests.support.ports import free_address
from tests.support.running_worker import FAKE, ROOT
from tests.support.starting import INIT, NAMESPACE, Starting, needs_init, needs_namespace

NOBODY = "127.0.0.1:1"
TERM, INT, HUP = signal.SIGTERM, signal.SIGINT, signal.SIGHUP
GATEWAY = [sys.executable, "-m", "polyfleet.gateway", "--fleet", NOBODY]
GATEWAY += [word for port in ("grpc", "http", "metrics") for word in (f"--{port}-listen", "127.0.0.1:0")]
ENVIRON = {**os.environ, "PYTHONPATH": str(ROOT)}
DELAYS = (0.0, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 2.4)
SIGNALS: list[Any] = [(TERM, delay) for delay in DELAYS] + [(number, 0.8) for number in (INT, HUP)]
SIGNALS += [pytest.param(number, delay, marks=pytest.mark.slow) for number in (INT, HUP) for delay in (0.2, 1.6)]
EOF = "the end of its input"
TOLD: list[Any] = [(TERM, delay) for delay in (0.3, 1.5, 5.0)] + [(told, 1.5) for told in (INT, HUP, EOF)]
TOLD += [pytest.param(told, delay, marks=pytest.mark.slow) for told in (INT, HUP, EOF) for delay in (0.3, 5.0)]


def worker(fleet: str, *more: str) -> list[str]:
    """A worker whose model never comes to be loaded."""
    command = [sys.executable, "-m", FAKE, "--accelerator", "cpu", "--fleet", fleet]
    return [*command, "--model", "fake:load_seconds=600", *more]


def ended_well(status: int, number: signal.Signals) -> bool:
    """By the signal, before there was anything to drain; or drained."""
    return status in (0, -number, 128 + number)


@pytest.mark.parametrize(("number", "delay"), SIGNALS)
def test_gateway(number: signal.Signals, delay: float) -> None:
    gateway = Starting(GATEWAY)
    gateway.watch(delay)
    os.kill(gateway.pid, number)
    assert ended_well(gateway.status(), number)
    assert delay < 0.1 or "Traceback" not in gateway.output  # Python's own start is not ours


@pytest.mark.parametrize(("number", "delay"), SIGNALS)
async def test_worker(tmp_path: Path, number: signal.Signals, delay: float) -> None:
    async with FakeFleet() as fleet:
        lock = tmp_path / "worker.json"
        starting = Starting(worker(fleet.address, "--lock-file", str(lock)), environ=ENVIRON)
        await asyncio.to_thread(starting.watch, delay)
        os.kill(starting.pid, number)
        status = await asyncio.to_thread(starting.status)
        await fleet.until(lambda: fleet.registered == 0)
    assert ended_well(status, number)
    assert not lock.exists()
    assert fleet.states()[-1:] in ([], ["DRAINING"])
    assert delay < 0.1 or "Traceback" not in starting.output


async def test_worker_whose_whole_group_is_signalled_while_its_engine_starts(tmp_path: Path) -> None:
    starting = Starting(worker(NOBODY), environ=ENVIRON)
    while not starting.family:
        starting.watch(0.0)
    os.killpg(starting.pid, TERM)  # as systemd does, and a terminal's Ctrl-C
    assert starting.status() == 0


@pytest.fixture
def folder() -> Iterator[str]:
    """For temporary files, with a path short enough for Ray."""
    with tempfile.TemporaryDirectory(dir="/tmp") as path:
        yield path


@pytest.mark.parametrize(("told", "delay"), TOLD)
def test_scheduler(tmp_path: Path, folder: str, told: signal.Signals | str, delay: float) -> None:
    command = [sys.executable, "-m", "polyfleet.scheduler", "--state-dir", str(tmp_path), "--stop-at-eof"]
    for port in ("listen", "metrics-listen"):
        command += [f"--{port}", free_address()]
    scheduler = Starting(command, environ={**os.environ, "TMPDIR": folder})
    scheduler.watch(delay)
    if isinstance(told, signal.Signals):
        os.kill(scheduler.pid, told)
    else:
        scheduler.close_input()
    assert ended_well(scheduler.status(), told if isinstance(told, signal.Signals) else TERM)
    assert os.listdir(folder) == []
    assert "Traceback" not in scheduler.output


@pytest.mark.parametrize("command", [GATEWAY, worker(NOBODY)], ids=["gateway", "worker"])
@pytest.mark.parametrize("delay", DELAYS)
def test_behind_the_init_of_the_images(command: Sequence[str], delay: float) -> None:
    needs_init()
    starting = Starting([*NAMESPACE, *INIT, *command], environ=ENVIRON)
    init = starting.process_1()
    starting.watch(delay)
    os.kill(init.pid, TERM)
    assert ended_well(starting.status(), TERM)


@pytest.mark.parametrize("command", [GATEWAY, worker(NOBODY)], ids=["gateway", "worker"])
def test_as_process_1_from_the_first_handler_on(command: Sequence[str]) -> None:
    needs_namespace()
    starting = Starting([*NAMESPACE, *command], environ=ENVIRON)
    os.kill(starting.process_1().pid, TERM)
    assert ended_well(starting.status(), TERM)


@pytest.mark.parametrize("python", ["exec sleep 600", "exit 1"], ids=["waits for Ray", "can't reach Ray"])
@pytest.mark.parametrize("name", ["ray-head", "ray-node"])
@pytest.mark.parametrize("delay", [0.0, 0.05, 0.2, 1.5])
def test_scripts_around_ray(tmp_path: Path, name: str, python: str, delay: float) -> None:
    needs_init()
    for program, does in (("ray", "exec sleep 600"), ("python", python)):
        (tmp_path / program).write_text(f"#!/bin/sh\n{does}\n")
        (tmp_path / program).chmod(0o755)
    path = {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    environ = {**path, "STATE_DIR": str(tmp_path / "state"), "POD_IP": "10.0.0.7", "RAY_HEAD": "head:6379"}
    script = (CHART / "files" / f"{name}.sh").read_text()
    starting = Starting([*NAMESPACE, *INIT, "/bin/sh", "-c", script, name], environ=environ)
    init = starting.process_1()
    starting.watch(delay)
    os.kill(init.pid, TERM)
    assert ended_well(starting.status(), TERM)
    assert not psutil.pid_exists(init.pid)

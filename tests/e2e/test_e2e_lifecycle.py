"""`polyfleet serve` starts whole or not at all, and leaves nothing behind."""

import os
import pty
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.support.serve_process import POLYFLEET, ServeProcess, wait_for

from polyfleet.cli.stack.settings import Flags, resolve

ROOT = Path(__file__).parents[2]
# Takes the terminal as its own and becomes the command.
TERMINAL = "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"


def assert_nothing_is_left(serve: ServeProcess) -> None:
    """Every process of the stack that was ever seen, or claimed the state folder, is gone."""
    assert serve.processes() == set()


def test_make_serve_once_exits_0_after_the_self_check(tmp_path: Path) -> None:
    serve = ServeProcess(tmp_path)
    installed = Path(sys.prefix) / ".installed-serve"
    make = ["make", "--directory", str(ROOT), "--old-file", str(installed), "serve", "ONCE=1", f"VENV={sys.prefix}"]
    serve.start([*make, f"ARGS={' '.join(serve.flags)}"])
    assert serve.wait_end() == 0, serve.output
    assert "Self-check smollm2-135m-instruct: " in serve.output
    assert "Ready after" in serve.output
    assert_nothing_is_left(serve)


@pytest.mark.parametrize(
    ("number", "program"),
    [
        (signal.SIGINT, r"polyfleet\.gateway"),
        (signal.SIGTERM, "raylet"),
        pytest.param(signal.SIGINT, r"polyfleet\.serving", marks=pytest.mark.slow),
    ],
)
def test_interrupted_while_starting_leaves_nothing(tmp_path: Path, number: int, program: str) -> None:
    serve = ServeProcess(tmp_path).start()
    wait_for(lambda: serve.find(program), f"{program} to be there")
    assert serve.stop(number) == 130, serve.output
    assert "Interrupted while starting; all that had started is stopped." in serve.output
    assert_nothing_is_left(serve)


@pytest.mark.parametrize(
    ("number", "delay"),
    [(signal.SIGTERM, delay) for delay in (0.0, 1.0, 2.5, 5.0)]
    + [(signal.SIGHUP, 4.0), (signal.SIGKILL, 1.0), (signal.SIGKILL, 3.0)]
    + [
        pytest.param(number, delay, marks=pytest.mark.slow)
        for number, delay in (
            *((signal.SIGTERM, 0.5), (signal.SIGTERM, 1.5)),
            *((signal.SIGHUP, 1.0), (signal.SIGKILL, 1.5)),
        )
    ],
)
def test_a_signal_at_any_moment_of_the_start_leaves_nothing(
    tmp_path: Path, number: signal.Signals, delay: float
) -> None:
    serve = ServeProcess(tmp_path).start()
    deadline = time.monotonic() + delay
    while time.monotonic() < deadline:
        serve.processes()
        time.sleep(0.05)
    assert serve.stop(number) in (130, -number), serve.output
    wait_for(lambda: not serve.processes(), "every process to end")
    assert "Traceback" not in serve.output
    assert serve.locks() == []


def test_a_terminal_that_goes_away_takes_everything_along(tmp_path: Path) -> None:
    serve = ServeProcess(tmp_path)
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", TERMINAL, *POLYFLEET, "serve", *serve.flags]
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, text=True, start_new_session=True)
    os.close(theirs)
    serve.process = process  # for its family
    wait_for(lambda: serve.find("raylet"), "Ray to be there")
    os.close(ours)
    wait_for(lambda: (process.poll(), not serve.processes())[1], "every process to end")


def test_nohup_is_heeded_and_ctrl_c_ends_every_process(tmp_path: Path) -> None:
    serve = ServeProcess(tmp_path)
    serve.start(["nohup", *POLYFLEET, "serve", *serve.flags])
    wait_for(lambda: serve.find(r"polyfleet\.gateway"), "the gateway to be there")
    assert serve.process
    serve.process.send_signal(signal.SIGHUP)
    serve.wait_ready()
    programs = {"polyfleet.gateway", "polyfleet.scheduler", "polyfleet.serving", "raylet"}
    assert {name for name in programs if serve.find(name)} == programs
    assert serve.stop(signal.SIGINT) == 0, serve.output
    assert_nothing_is_left(serve)


def test_a_killed_serve_takes_everything_along(tmp_path: Path) -> None:
    serve = ServeProcess(tmp_path).start()
    wait_for(lambda: serve.find(r"polyfleet\.serving"), "the worker to be there")
    assert serve.find(r"polyfleet\.gateway")
    serve.stop(signal.SIGKILL)
    wait_for(lambda: not serve.processes(), "every process to end")


@pytest.mark.parametrize("listener", ["grpc", "http", "fleet", "metrics", "gateway_metrics"])
def test_a_port_in_use_is_named_before_anything_starts(tmp_path: Path, listener: str) -> None:
    serve = ServeProcess(tmp_path / "state")
    address = getattr(serve, listener)
    host, port = address.split(":")
    with socket.create_server((host, int(port))):
        done = serve.polyfleet("serve", *serve.flags)
    assert done.returncode == 1
    assert f"{address} is in use: free it, or choose another address with --{listener}".replace("_", "-") in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "state").exists()


def test_a_corrupt_model_is_refused_in_a_sentence(tmp_path: Path) -> None:
    good = Path(resolve(Flags()).config.deployments[0].source)
    bad = tmp_path / "cut-off.gguf"
    with good.open("rb") as file:
        bad.write_bytes(file.read(50_000_000))
    serve = ServeProcess(tmp_path / "state", "--model", str(bad)).start()
    assert serve.wait_end() == 2, serve.output  # before anything was started
    (sentence,) = [line for line in serve.lines if line.startswith("Error: ")]
    assert "cut-off.gguf" in sentence
    assert "truncated" in sentence
    assert_nothing_is_left(serve)

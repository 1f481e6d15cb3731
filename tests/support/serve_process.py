"""`polyfleet serve` as users start it: a process of its own, on free ports, with its own state folder."""

import json
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
from tests.support.ports import free_addresses

from polyfleet.cli.commands.fleet import worker_record
from polyfleet.cli.errors import CliError
from polyfleet.cli.fleet_client import open_fleet

READY = "Ctrl-C stops everything."
PATIENCE_SECONDS = 240.0
POLYFLEET = [sys.executable, "-m", "polyfleet.cli"]


def wait_for(condition: Callable[[], Any], what: str, seconds: float = PATIENCE_SECONDS, *, pause: float = 0.05) -> Any:
    """The first true value of `condition`; fails the test, naming `what`, when there is none in time."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"waited {seconds:g} s for {what}"
        time.sleep(pause)
    return value


class ServeProcess:
    """One `polyfleet serve`. `lines` collects what it prints, both streams, as it comes.

    It starts no console unless a `--console-port` among `arguments` says so.
    """

    def __init__(self, state_dir: Path, *arguments: str) -> None:
        self.grpc, self.http, self.fleet, self.metrics, self.gateway_metrics = free_addresses(5)
        self.state_dir = state_dir
        self.lines: list[str] = []
        self._arguments = arguments
        self._printed: queue.Queue[str] = queue.Queue()
        self._known: set[psutil.Process] = set()
        self.process: subprocess.Popen[str] | None = None

    @property
    def flags(self) -> list[str]:
        """The flags that keep it apart from every other stack on this machine."""
        where = ["--grpc-listen", self.grpc, "--http-listen", self.http, "--fleet-listen", self.fleet]
        where += ["--gateway-metrics-listen", self.gateway_metrics, "--console-port", "0"]
        return [*where, "--metrics-listen", self.metrics, "--state-dir", str(self.state_dir)]

    @property
    def output(self) -> str:
        """All that it has printed so far."""
        return "".join(self.lines)

    def start(self, command: list[str] | None = None) -> "ServeProcess":
        """Start it and return at once."""
        self.process = subprocess.Popen(
            command or [*POLYFLEET, "serve", *self.flags, *self._arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,  # as a shell would: Ctrl-C of the test run is not its own
        )
        threading.Thread(target=self._read, args=(self.process,), daemon=True).start()
        return self

    def _read(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdout
        for line in process.stdout:
            self.lines.append(line)

    def wait_ready(self) -> "ServeProcess":
        """Return once it has printed its endpoints; fails the test when it ends before."""
        wait_for(lambda: READY in self.output or not self.running, "the stack to be ready")
        assert self.running, self.output
        return self

    def wait_end(self) -> int:
        """Wait until it ends by itself, with an eye on the processes that it starts; gives the exit code."""
        wait_for(lambda: (self.processes(), not self.running)[1], "the command to end", pause=0.2)
        return self.stop()

    @property
    def running(self) -> bool:
        """Whether the command itself runs."""
        assert self.process
        return self.process.poll() is None

    def processes(self) -> set[psutil.Process]:
        """Every process of the stack seen by any call of this method that still lives."""
        assert self.process
        try:
            root = psutil.Process(self.process.pid)
            self._known |= {root, *root.children(recursive=True)}
        except psutil.NoSuchProcess:
            pass
        for worker in self.locks():
            with suppress(psutil.NoSuchProcess):
                self._known.add(psutil.Process(worker["pid"]))
        return {each for each in self._known if alive(each)}

    def locks(self) -> list[dict[str, Any]]:
        """The workers' lock files."""
        found = []
        for path in (self.state_dir / "workers").glob("*.json"):
            with suppress(FileNotFoundError):  # its worker has ended meanwhile
                found.append(json.loads(path.read_text()))
        return found

    def ray_folders(self) -> list[str]:
        """Where this stack's Ray keeps its files, while it has one."""
        link = self.state_dir / "ray"
        return [os.readlink(link)] if link.is_symlink() else []

    def find(self, pattern: str) -> list[psutil.Process]:
        """Living processes of the stack whose command line matches."""
        return [each for each in self.processes() if re.search(pattern, command_line(each))]

    def stop(self, number: int = signal.SIGINT) -> int:
        """Send the signal and wait for the end; gives the exit code."""
        assert self.process
        self.processes()
        if self.running:
            os.kill(self.process.pid, number)
        return self.process.wait(90)

    def polyfleet(self, *arguments: str, stdin: str = "") -> "subprocess.CompletedProcess[str]":
        """Run another `polyfleet` command to its end."""
        return subprocess.run(
            [*POLYFLEET, *arguments], input=stdin, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
        )

    def workers(self) -> list[dict[str, Any]]:
        """What `polyfleet workers --json` prints; empty while the scheduler does not answer."""
        try:
            with open_fleet(self.fleet, None) as fleet:
                return [worker_record(worker) for worker in fleet.snapshot().workers]
        except CliError:
            return []

    def ready_workers(self) -> list[dict[str, Any]]:
        """Those that serve."""
        return [worker for worker in self.workers() if worker["state"] == "ready"]


def alive(process: psutil.Process) -> bool:
    """Whether it runs; a zombie does not."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def command_line(process: psutil.Process) -> str:
    """Its command line; empty when it has gone."""
    try:
        return " ".join(process.cmdline())
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return ""

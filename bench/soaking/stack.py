"""A `polyfleet serve` of the soak's own: started, looked at, its workers and engines killed, stopped."""

import asyncio
import json
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import psutil

from polyfleet.cli.stack.settings import bundled_model
from polyfleet.process.listening import free_addresses
from polyfleet.process.within import Within

READY = "Ctrl-C stops everything."
PATIENCE_SECONDS = 300.0
STOP_SECONDS = 90.0
ROLES = {"gateway": "polyfleet.gateway", "scheduler": "polyfleet.scheduler", "worker": "polyfleet.serving"}
ENGINE = "polyfleet.serving.engine_process"


class StackError(Exception):
    """The stack did not come up; the message has the end of what it said."""


class OwnStack:
    """On free ports of loopback, with a state folder of its own. A context manager; stops what it started.

    Its folder goes when it ends, but with an error or with `keep_folder`: then its logs are to be read.
    """

    def __init__(self, workers: int, model: str = "") -> None:
        names = ("grpc", "http", "gateway-metrics", "fleet", "metrics")
        self._addresses = dict(zip(names, free_addresses(len(names)), strict=True))
        self.grpc, self.http, self.fleet = (self._addresses[name] for name in ("grpc", "http", "fleet"))
        self.folder = Path(tempfile.mkdtemp(prefix="polyfleet-soak-"))
        self.keep_folder = False
        self._log = self.folder / "serve.log"
        flags = [part for name, address in self._addresses.items() for part in (f"--{name}-listen", address)]
        config = self.folder / "polyfleet.yaml"
        config.write_text(json.dumps({"deployments": [_deployment(model or str(bundled_model()), workers)]}))
        flags += ["--state-dir", str(self.folder / "state"), "--config", str(config), "--console-port", "0"]
        self._command = [sys.executable, "-m", "polyfleet.cli", "serve", *flags]

    def __enter__(self) -> "OwnStack":
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        try:
            self._wait_ready()
        except BaseException:
            self._stop()
            raise
        return self

    def _wait_ready(self) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while READY not in (said := self._log.read_text(errors="replace")):
            if not self.runs or time.monotonic() > deadline:
                raise StackError(f"the stack is not ready: {said[-2000:]}")
            time.sleep(0.2)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stop()
        if not (isinstance(error, Exception) or self.keep_folder):
            shutil.rmtree(self.folder, ignore_errors=True)  # a worker may still write its last line

    def _stop(self) -> None:
        if self.runs:
            self._process.terminate()
            self._process.wait(STOP_SECONDS)

    def processes(self) -> dict[str, list[psutil.Process]]:
        """The living processes of each role; workers, which are in sessions of their own, by their lock files."""
        found: dict[str, list[psutil.Process]] = {role: [] for role in (*ROLES, "engine")}
        for process in self._everything():
            role = _role(process)
            if role:
                found[role].append(process)
        return found

    def find(self, pattern: str) -> list[psutil.Process]:
        """The living processes whose command lines match."""
        return [process for process in self._everything() if re.search(pattern, _command_line(process))]

    @property
    def runs(self) -> bool:
        """Whether the command itself is there."""
        return self._process.poll() is None

    def said(self) -> str:
        """The end of what it printed."""
        return self._log.read_text(errors="replace")[-2000:]

    def _everything(self) -> list[psutil.Process]:
        return list(dict.fromkeys([*psutil.Process(self._process.pid).children(recursive=True), *self._workers()]))

    def _workers(self) -> list[psutil.Process]:
        workers = []
        for path in (self.folder / "state" / "workers").glob("*.json"):
            with suppress(OSError, ValueError, psutil.Error):  # it is going or coming
                worker = psutil.Process(json.loads(path.read_text())["pid"])
                workers += [worker, *worker.children()]
        return workers

    def memory(self) -> dict[str, float]:
        """Resident megabytes by role."""
        sums: Counter[str] = Counter()
        for role, processes in self.processes().items():
            for process in processes:
                with suppress(psutil.Error):
                    sums[role] += process.memory_info().rss / 1e6
        return dict(sums)


class Killer:
    """Kills a worker or an engine of a stack every `seconds`, when all its workers are ready."""

    def __init__(self, stack: OwnStack, seed: int) -> None:
        self.kills: Counter[str] = Counter()
        self._stack = stack
        self._rng = random.Random(seed)

    def strike(self) -> None:
        """Kill one of either in turn."""
        role = ("engine", "worker")[self.kills.total() % 2]
        candidates = self._stack.processes()[role]
        if candidates:
            try:
                self._rng.choice(candidates).kill()
            except psutil.Error:
                return
            self.kills[role] += 1


def _deployment(model: str, workers: int) -> dict[str, object]:
    """`reproducible`: with AMX the tokens of long prompts depend on company and cache otherwise, as documented."""
    source = str(Path(model).resolve())
    return {"name": "soak", "source": source, "workers": workers, "options": {"reproducible": True}}


def _command_line(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def _role(process: psutil.Process) -> str:
    line = _command_line(process)
    if ENGINE in line:
        return "engine"
    return next((role for role, module in ROLES.items() if f"-m {module}" in line), "")


class Helper:
    """A program that works beside the soak until its standard input ends and then prints one JSON object."""

    def __init__(self, program: str, *arguments: str) -> None:
        self._command = [sys.executable, str(Path(__file__).with_name(program)), *arguments]

    async def __aenter__(self) -> "Helper":
        pipe = asyncio.subprocess.PIPE
        self._process = await asyncio.create_subprocess_exec(*self._command, stdin=pipe, stdout=pipe)
        self.seen: dict[str, float] = {}
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            with Within(STOP_SECONDS):
                printed = (await self._process.communicate(b""))[0]
        except asyncio.TimeoutError:
            self._process.kill()
            raise StackError(f"{self._command[1]} did not end") from None
        self.seen = json.loads(printed or b"{}")

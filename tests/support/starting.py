"""Processes that are signalled while they start, by themselves or as process 1 of a namespace of their own."""

import functools
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from tests.support.serve_process import alive

HANG_SECONDS = 60.0  # generous, for a machine that has more to do
NAMESPACE = ["unshare", "--map-root-user", "--pid", "--fork", "--mount-proc", "--kill-child"]
DUMB_INIT = shutil.which("dumb-init", path=f"{Path(sys.executable).parent}") or shutil.which("dumb-init")
INIT_NAME = "dumb-init"
INIT = [DUMB_INIT or INIT_NAME, "--single-child", "--"]


@functools.cache
def needs_namespace() -> None:
    """Skip where no PID namespace can be had."""
    if not shutil.which("unshare") or subprocess.run([*NAMESPACE, "true"], capture_output=True).returncode:
        pytest.skip("unshare can't make a PID namespace here")


def needs_init() -> None:
    """Skip where the images' init is not installed."""
    needs_namespace()
    if DUMB_INIT is None:
        pytest.skip("dumb-init is not installed: it has wheels for Linux only")


class Starting:
    """A process from its first moment on. `family` is every process seen below it."""

    def __init__(self, command: list[str], *, environ: Mapping[str, str] | None = None) -> None:
        self._popen = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environ,
            start_new_session=True,
        )
        self._root = psutil.Process(self._popen.pid)
        self.pid = self._popen.pid
        self.family: set[psutil.Process] = set()
        self.output = ""

    def watch(self, seconds: float) -> None:
        """Let it go on, with an eye on what it starts."""
        deadline = time.monotonic() + seconds
        while True:
            self.family.update(self._root.children(recursive=True))
            if (left := deadline - time.monotonic()) <= 0:
                return
            time.sleep(min(0.05, left))

    def process_1(self) -> psutil.Process:
        """Process 1 of its namespace, once it does something about SIGTERM: catches, holds back or passes it on."""
        while True:
            for child in self._root.children():
                with suppress(psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):  # it ends meanwhile
                    heard = alive(child) and child.name() != "unshare" and not _is_dropped(child.pid, signal.SIGTERM)
                    if heard and (child.name() != INIT_NAME or _has_begun(child)):
                        return child
            assert self._popen.poll() is None, self._popen.communicate()
            time.sleep(0.001)

    def close_input(self) -> None:
        """End its standard input."""
        assert self._popen.stdin
        self._popen.stdin.close()
        self._popen.stdin = None

    def status(self) -> int:
        """Its exit status, once it has ended and all of its family; fails the test when they stay."""
        try:
            self.output, _ = self._popen.communicate(timeout=HANG_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError("it is still there") from None
        _, left = psutil.wait_procs([each for each in self.family if alive(each)], timeout=HANG_SECONDS)
        assert not left
        return self._popen.returncode

    def kill(self) -> None:
        """End all of it."""
        for each in {*self._root.children(recursive=True), *self.family, self._root}:
            with suppress(psutil.NoSuchProcess):
                each.kill()


def _has_begun(init: psutil.Process) -> bool:
    """Whether what an init starts runs: for some microseconds before, dumb-init's fork swallows what it is sent."""
    return any(alive(child) and child.name() != INIT_NAME for child in init.children())


def _is_dropped(pid: int, number: int) -> bool:
    """Whether the kernel drops this signal for a process 1: it is neither caught nor blocked."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    masks = [int(line.split()[1], 16) for line in lines if line.startswith(("SigCgt", "SigBlk"))]
    return not any(mask >> (number - 1) & 1 for mask in masks)

"""Processes of a fleet, any of which may be killed, stopped, ended or started again at any moment."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

END_SECONDS = 90.0


class Part:
    """`python -m MODULE ARGUMENTS`, its log in `folder`. `start` starts it again with the same arguments.

    `environ` is added to what it inherits, `prefix` begins its command: a program that becomes it.
    """

    def __init__(self, name: str, module: str, arguments: Sequence[str], folder: Path) -> None:
        self.name = name
        self.environ: Mapping[str, str] = {}
        self.prefix: Sequence[str] = ()
        self._command = [sys.executable, "-m", module, *arguments]
        self._log = folder / f"{name}.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Unless it runs."""
        if not self.runs:
            with self._log.open("ab") as log:
                self._process = subprocess.Popen(
                    [*self.prefix, *self._command],
                    env={**os.environ, **self.environ},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )

    @property
    def runs(self) -> bool:
        """Whether it is there."""
        return self._process is not None and self._process.poll() is None

    @property
    def process(self) -> psutil.Process:
        """The one that runs now. Raises psutil.NoSuchProcess."""
        if self._process is None or not self.runs:
            raise psutil.NoSuchProcess(0)
        return psutil.Process(self._process.pid)

    @property
    def engine(self) -> psutil.Process:
        """A worker's engine process. Raises psutil.NoSuchProcess."""
        children = self.process.children()
        if not children:
            raise psutil.NoSuchProcess(0)
        return children[0]

    def kill(self) -> None:
        """With SIGKILL; a worker's engine follows by itself."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def end(self, seconds: float = END_SECONDS) -> int:
        """With SIGTERM, in good order; what does not end in time is killed. Its exit status."""
        if self._process is None:
            return 0
        self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(seconds)
        self.kill()
        return -signal.SIGKILL

    def said(self) -> str:
        """The end of its log."""
        return self._log.read_text(errors="replace")[-2000:] if self._log.exists() else ""

"""Clocks of processes, each of which can be set ahead or back while the process runs: the time of day alone."""

import subprocess
from collections.abc import Mapping
from pathlib import Path

SOURCE = Path(__file__).with_name("clock.cpp")


class Clocks:
    """One clock for each name, all right at first. Raises OSError where the library can't be compiled."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._library = folder / "clock.so"
        command = ["c++", "-std=c++17", "-O2", "-shared", "-fPIC", "-o", str(self._library), str(SOURCE), "-ldl"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise OSError(f"{SOURCE} can't be compiled: {done.stderr[-500:]}")

    def environ(self, name: str) -> Mapping[str, str]:
        """What the process has to be started with."""
        self.set(name, 0)
        return {"LD_PRELOAD": str(self._library), "CHAOS_CLOCK": str(self._file(name))}

    def set(self, name: str, seconds: int) -> None:
        """So much ahead of the right time, or back; from now on, in the process that runs too."""
        with self._file(name).open("r+b" if self._file(name).exists() else "w+b") as file:
            file.write(seconds.to_bytes(8, "little", signed=True))

    def _file(self, name: str) -> Path:
        return self._folder / f"{name}.clock"

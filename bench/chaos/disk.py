"""A file system of few megabytes that can be full: a tmpfs in a mount namespace of its own."""

import os
import subprocess
from pathlib import Path
from types import TracebackType

MEGABYTES = 8
MOUNT = f'mount -t tmpfs -o size={MEGABYTES}m none "$0" && echo mounted && exec cat'


class SmallDisk:
    """Context manager. `command` begins the command of a process that sees it at `folder`, which is made.

    Entering raises OSError, with what it lacks, where this user may mount nothing.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()

    def __enter__(self) -> "SmallDisk":
        mapped = ["--map-root-user"] if os.geteuid() else []
        pipe = subprocess.PIPE
        self._holder = subprocess.Popen(  # it ends with this process, and the file system with it
            ["unshare", "--mount", *mapped, "sh", "-c", MOUNT, str(self.folder)], stdin=pipe, stdout=pipe, stderr=pipe
        )
        assert self._holder.stdout is not None
        if self._holder.stdout.readline() != b"mounted\n":
            raise OSError(f"No small disk can be mounted: {self._holder.communicate()[1].decode().strip()}.")
        users = ["--user", "--preserve-credentials"] if mapped else []
        self.command = ["nsenter", f"--target={self._holder.pid}", "--mount", *users, f"--wd={Path.cwd()}"]
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._holder.communicate(b"")

    def fill(self) -> None:
        """Not one block is left."""
        subprocess.run([*self.command, "dd", "if=/dev/zero", f"of={self._filler}", "bs=4k"], capture_output=True)

    def clear(self) -> None:
        """There is room again."""
        subprocess.run([*self.command, "rm", "-f", self._filler], check=True)

    @property
    def _filler(self) -> str:
        return str(self.folder / "filler")

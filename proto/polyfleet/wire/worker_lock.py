"""A worker's lock file, which the worker writes and its launcher reads: one live worker per file, and where it is.

Content: {"worker_id", "pid", "started", "address", "metrics_address"}; `started` is the process's start in Unix
seconds, so that a process that inherited the pid is not taken for the worker.
"""

from pathlib import Path

import msgspec
import psutil

START_TOLERANCE_SECONDS = 2.0  # the start is computed from the boot time, which clock steps move


class WorkerLock(msgspec.Struct, frozen=True):
    """What a worker's lock file says once its ports are open."""

    worker_id: str
    pid: int
    started: float
    address: str = ""
    metrics_address: str = ""

    @property
    def alive(self) -> bool:
        """Whether the process that wrote it still runs."""
        return is_alive(self.pid, self.started)


def is_alive(pid: int, started: float) -> bool:
    """Whether the process of that pid runs, and is the one that started then."""
    try:
        process = psutil.Process(pid)
        same = abs(process.create_time() - started) <= START_TOLERANCE_SECONDS
        return bool(same and process.status() != psutil.STATUS_ZOMBIE)
    except (psutil.NoSuchProcess, ValueError):  # a pid below 0 is none
        return False


def read_lock(path: Path) -> WorkerLock | None:
    """What a lock file says; None when there is none or it is no lock file of ours. Raises OSError when unreadable."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=WorkerLock)
    except (FileNotFoundError, msgspec.DecodeError):
        return None

"""A worker's lock file, which the worker writes and its launcher reads: one live worker per file, and where it is.

Content: {"worker_id", "pid", "started", "start", "address", "metrics_address"}. `start` names the start of the process,
so that another one that got the pid is not taken for the worker, nor the worker for another one when the clock is set.
`started`, Unix seconds, is what workers before it wrote alone.
"""

import sys
from pathlib import Path

import msgspec
import psutil

START_TOLERANCE_SECONDS = 2.0  # `started` is computed from the boot time, which clock steps move


class WorkerLock(msgspec.Struct, frozen=True):
    """What a worker's lock file says once its ports are open."""

    worker_id: str
    pid: int
    started: float
    address: str = ""
    metrics_address: str = ""
    start: str = ""

    @property
    def alive(self) -> bool:
        """Whether the process that wrote it still runs."""
        try:
            process = psutil.Process(self.pid)
            if self.start:
                same = start_of(self.pid) == self.start
            else:
                same = abs(process.create_time() - self.started) <= START_TOLERANCE_SECONDS
            return bool(same and process.status() != psutil.STATUS_ZOMBIE)
        except (psutil.NoSuchProcess, ValueError):  # a pid below 0 is none
            return False


def start_of(pid: int) -> str:
    """A name for this start of a process, which nothing changes while it runs. Raises psutil.NoSuchProcess.

    On Linux: the boot, and the clock ticks from then on. Elsewhere the system notes a time once.
    """
    if sys.platform != "linux":
        return repr(psutil.Process(pid).create_time())
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        raise psutil.NoSuchProcess(pid) from None
    ticks = status.rpartition(")")[2].split()[19]  # the 22nd of all; a name may have spaces and brackets
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return f"{boot}:{ticks}"


def read_lock(path: Path) -> WorkerLock | None:
    """What a lock file says; None when there is none or it is no lock file of ours. Raises OSError when unreadable."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=WorkerLock)
    except (FileNotFoundError, msgspec.DecodeError):
        return None

"""Log files of bounded size, whoever writes them: processes of ours, native code that crashes, Ray.

Every writer appends (O_APPEND). So a file that has grown is copied to `<name>.1` and emptied, and its writers go on at
its beginning without being told; what is written between the two, within microseconds, is lost.
"""

import asyncio
import contextlib
import fcntl
import os
import shutil
import time
from pathlib import Path

from polyfleet.process.logs import set_up_logging

MAX_BYTES = 8 * 1024 * 1024  # of a file; `<name>.1` holds as much again
LOOK_SECONDS = 2.0
WORKER_LOGS_KEPT = 40  # of workers that have gone, the newest
FINISHED_SECONDS = 24 * 3600.0  # a worker's log that nobody wrote to for so long is of one that has gone


def log_to_file(state: Path, name: str, level: str, process: str) -> None:
    """Send this process's log to the file of that name in the state folder."""
    folder = state / "logs"
    folder.mkdir(parents=True, exist_ok=True)
    set_up_logging(level, (folder / name).open("a", encoding="utf-8", buffering=1), process=process)


async def keep_small(folder: Path) -> None:
    """Bound the logs of `folder` for ever. Several processes may do so at once."""
    while True:
        await asyncio.to_thread(bound, folder)
        await asyncio.sleep(LOOK_SECONDS)


def bound(folder: Path, max_bytes: int = MAX_BYTES) -> None:
    """Turn over each `*.log` that is longer than `max_bytes`; drop the oldest of the workers'. Never raises OSError."""
    for path in folder.glob("*.log"):
        with contextlib.suppress(OSError):
            if path.stat().st_size > max_bytes:
                _turn_over(path, max_bytes)
    with contextlib.suppress(OSError):
        _drop_oldest(folder)


def _turn_over(path: Path, max_bytes: int) -> None:
    """The last `max_bytes` to `<name>.1`, and the file emptied. BlockingIOError: another process does it just now."""
    with path.open("r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        size = os.fstat(file.fileno()).st_size
        if size <= max_bytes:
            return  # another process was faster
        older, fresh = (path.with_name(f"{path.name}.{end}") for end in ("1", "1.new"))
        file.seek(size - max_bytes)
        with fresh.open("wb") as copy:
            os.fchmod(copy.fileno(), os.fstat(file.fileno()).st_mode & 0o777)
            shutil.copyfileobj(file, copy)
        os.replace(fresh, older)
        file.truncate(0)


def _drop_oldest(folder: Path) -> None:
    found = sorted(folder.glob("worker-*.log"), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in found[WORKER_LOGS_KEPT:]:
        if time.time() - path.stat().st_mtime > FINISHED_SECONDS:
            path.unlink(missing_ok=True)
            path.with_name(f"{path.name}.1").unlink(missing_ok=True)

"""The worker's claim on its lock file, so that one live worker at most has it."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psutil

from polyfleet.process.worker_lock import WorkerLock, read_lock, start_of


class LockedError(Exception):
    """The lock can't be had: a live worker holds it, or the file can't be used. The message is one sentence."""


class LockFile:
    """This process's claim on `path`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._mine: WorkerLock | None = None

    def check(self) -> None:
        """Raise LockedError when a live worker holds the file, or the file can't be read."""
        try:
            holder = read_lock(self._path)
        except OSError as error:
            raise LockedError(f"The lock file {self._path} can't be read: {error.strerror}.") from None
        if holder is not None and holder.alive:
            raise LockedError(
                f"Worker {holder.worker_id} (pid {holder.pid}) holds {self._path} already: stop it, "
                "or give this worker another --lock-file."
            )

    def acquire(self, worker_id: str, address: str, metrics_address: str) -> None:
        """Write this process into the file, at once and whole. Raises LockedError."""
        pid, started = os.getpid(), psutil.Process().create_time()
        record = WorkerLock(worker_id, pid, started, address, metrics_address, start_of(pid))
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with _only_one(self._path.parent):
                self.check()
                fresh = self._path.with_name(f".{self._path.name}.{os.getpid()}")
                fresh.write_bytes(msgspec.json.encode(record) + b"\n")
                os.replace(fresh, self._path)
        except OSError as error:
            raise LockedError(f"The lock file {self._path} can't be written: {error.strerror}.") from None
        self._mine = record

    def release(self) -> None:
        """Remove the file if it is still ours. Without a claim, nothing happens."""
        if self._mine is not None and read_lock(self._path) == self._mine:
            with contextlib.suppress(FileNotFoundError):
                self._path.unlink()
        self._mine = None


@contextlib.contextmanager
def _only_one(folder: Path) -> Iterator[None]:
    """Between the look and the write nobody else may do the same in this folder."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)

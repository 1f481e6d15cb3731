"""A worker's operating-system process: started in a session of its own, or found again by its lock file."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec

from polyfleet.process.channels import FLEET_TLS_DIR
from polyfleet.process.worker_lock import WorkerLock, read_lock
from polyfleet.scheduler.launcher.launch import LaunchSpec
from polyfleet.scheduler.marks import FLEET_ID

POLL_SECONDS = 0.2  # how often the end of an adopted process, which is no child, is looked for
REASON_TAIL_BYTES = 4096
NOT_FOR_WORKERS = ("OMP_NUM_THREADS", "SPT_NOENV", FLEET_TLS_DIR)  # Ray's, and what the spec says


def lock_path(spec: LaunchSpec) -> Path:
    """Where the worker's lock file lies."""
    return Path(spec.state_dir) / "workers" / f"{spec.worker_id}.json"


def log_path(spec: LaunchSpec) -> Path:
    """Where the worker's output goes."""
    return Path(spec.state_dir) / "logs" / f"{spec.worker_id}.log"


def live_lock(spec: LaunchSpec) -> WorkerLock | None:
    """The lock of this worker if the process that wrote it is alive, else None."""
    with contextlib.suppress(OSError):
        lock = read_lock(lock_path(spec))
        return lock if lock and lock.worker_id == spec.worker_id and lock.alive else None
    return None


def worker_command(spec: LaunchSpec) -> list[str]:
    """The command line of a spawned worker. Ports are free ones: the worker announces them itself."""
    load = spec.load_request
    command = [spec.launch.interpreter or sys.executable, "-m", "polyfleet.serving", "--launched"]
    flags = {
        "--worker-id": spec.worker_id,
        "--deployment": load.deployment,
        "--model": load.source,
        "--model-name": load.model_name,
        "--accelerator": spec.accelerator,
        "--place": str(spec.place or ""),
        "--fleet": spec.fleet_address,
        "--fleet-token-file": spec.worker_token_file or spec.fleet_token_file,
        "--fleet-keys-file": spec.fleet_keys_file,
        "--fleet-tls-dir": spec.worker_tls_dir,
        "--listen": f"{spec.worker_host}:0",
        "--metrics-listen": f"{spec.worker_host}:0",
        "--lock-file": str(lock_path(spec)),
        "--drain-timeout": f"{spec.drain_seconds:g}",
        "--log-level": spec.log_level,
    }
    options = {field.name: value for field, value in load.options.ListFields()}
    flags |= {f"--{name.replace('_', '-')}": str(value) for name, value in options.items()}
    for flag, value in flags.items():
        command += [flag, value] if value else []
    return command


def worker_environment(spec: LaunchSpec, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The node's environment without what Ray put into the launcher's: its own variables, and one OpenMP thread."""
    kept = {k: v for k, v in environ.items() if not k.startswith("RAY_") and k not in NOT_FOR_WORKERS}
    if kept.get("PYTHONBREAKPOINT", "").startswith("ray."):
        del kept["PYTHONBREAKPOINT"]
    return {**kept, **spec.launch.environment} | ({FLEET_ID: spec.fleet_id} if spec.fleet_id else {})


class LaunchedProcess:
    """One running worker process: a child, or adopted by its lock; nobody can learn that one's exit status."""

    def __init__(self, process: asyncio.subprocess.Process | WorkerLock) -> None:
        self.pid = process.pid
        self._process = process

    @classmethod
    async def start(cls, spec: LaunchSpec) -> "LaunchedProcess":
        """Start a worker that outlives this process. Raises OSError when the interpreter can't be run."""
        log_path(spec).parent.mkdir(parents=True, exist_ok=True)
        with log_path(spec).open("ab") as log:
            child = await asyncio.create_subprocess_exec(
                *worker_command(spec),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=worker_environment(spec),
                start_new_session=True,
            )
        return cls(child)

    @classmethod
    def adopt(cls, spec: LaunchSpec) -> "LaunchedProcess | None":
        """The worker that runs already, by its lock file; None when there is none."""
        lock = live_lock(spec)
        return cls(lock) if lock else None

    async def wait(self) -> int | None:
        """Wait for its end; the exit status (negative: a signal), or None when it is not known.

        What it leaves of its session (an engine that still holds the device) is ended too.
        """
        status: int | None = None
        if isinstance(self._process, WorkerLock):
            while self._process.alive:
                await asyncio.sleep(POLL_SECONDS)
        else:
            status = await self._process.wait()
        if _group_of(self.pid) is None:  # else the pid belongs to somebody else by now
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
        return status

    def terminate(self) -> None:
        """Ask it to finish and end. Nothing happens when it has ended."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        """End it and everything in its session at once. Nothing happens when all have ended."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            group = os.getpgid(self.pid)
            (os.killpg if group == self.pid else os.kill)(self.pid, signal.SIGKILL)


def _group_of(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return None


def ending(spec: LaunchSpec, status: int | None) -> str:
    """Why a worker ended, in one sentence. One that could not start (2) or load (3) said why in its last words."""
    if status in (2, 3) and (words := _last_words(log_path(spec))):
        return words
    if status is None:
        how = "ended"
    elif status < 0:
        how = f"was killed by signal {-status}"
    else:
        how = f"ended with status {status}"
    return f"The worker {how}; its log is {log_path(spec)}."


def _last_words(path: Path) -> str:
    """The last error in a worker's log (a JSON line of level error, or plain text); empty when there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - REASON_TAIL_BYTES))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return ""
    for line in reversed(lines):
        try:
            entry = msgspec.json.decode(line, type=dict[str, object])
        except msgspec.DecodeError:
            entry = {"level": "error", "message": line.strip()}
        if entry.get("level") == "error" and entry.get("message"):
            return str(entry["message"])
    return ""

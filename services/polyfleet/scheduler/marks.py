"""Processes found by a mark: a variable of their environment, which all that they start inherits.

A parent that dies loses its children, and Ray's die at any moment; a mark stays.
"""

import contextlib
import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path

import psutil

from polyfleet.scheduler.config import fleet_id

RAY_FOLDER = "RAY_POLYFLEET_FOLDER"  # of everything that belongs to one local Ray; workers lose it with Ray's own
FLEET_ID = "POLYFLEET_FLEET_ID"  # of every worker that a launcher started; no flag: an older worker need not know it
TERMINATE_SECONDS = 3.0  # between the second SIGTERM and SIGKILL
GONE_SECONDS = 2.0  # for what was killed to go
KILL_SECONDS = 20.0  # for all of it


def marked(name: str, value: str) -> list[psutil.Process]:
    """Every living process of this user, but for this one, that was started with the variable at this value."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            mine = process.pid != os.getpid() and process.environ().get(name) == value
            if mine and process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def kill_marked(name: str, value: str) -> None:
    """Kill them, and those that they have started meanwhile; returns when none is left.

    One that hangs in the kernel, as a device's driver may let it, can't be killed: it is left after KILL_SECONDS.
    """
    deadline = time.monotonic() + KILL_SECONDS
    while (found := marked(name, value)) and time.monotonic() < deadline:
        _send(found, signal.SIGKILL)
        psutil.wait_procs(found, timeout=GONE_SECONDS)


def end_workers(state: Path, grace: float) -> None:
    """End every worker that was spawned for this state folder, whoever looks after it; returns when none is left.

    A worker may finish what it runs for `grace` seconds. The first SIGTERM makes it drain, a second one end.
    """
    mine = fleet_id(state)
    for seconds in (grace, TERMINATE_SECONDS):
        if not (found := marked(FLEET_ID, mine)):
            return
        _send((each for each in found if _leads(each)), signal.SIGTERM)
        deadline = time.monotonic() + seconds
        while found and time.monotonic() < deadline:
            _, found = psutil.wait_procs([each for each in found if _leads(each)], timeout=0.1)
    kill_marked(FLEET_ID, mine)


def _leads(process: psutil.Process) -> bool:
    """Whether it is a worker, and not a process of one's own: those go with their worker."""
    with contextlib.suppress(ProcessLookupError):
        return bool(os.getsid(process.pid) == process.pid)
    return False


def _send(processes: Iterable[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):  # a pid that somebody else has now is left alone
            process.send_signal(number)

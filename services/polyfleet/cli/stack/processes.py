"""Signals and child processes of `polyfleet serve`."""

import shutil
import signal
import subprocess
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from polyfleet.process.signals import STOPPING, stopping

if TYPE_CHECKING:
    import psutil

TERMINATE_SECONDS = 10.0
CUT_SECONDS = 3.0  # for those whose requests are cut off to be told
KILL_SECONDS = 10.0


class Stopped(BaseException):
    """A signal asks to stop. Not an Exception, so that nothing on the way swallows it."""


@contextmanager
def stop_on_signals(first: Callable[[], None]) -> Iterator[None]:
    """At the first signal call `first` and raise Stopped in the main thread; later ones don't disturb the end.

    Behind Stopped they mean nothing until the process has ended. SIGHUP is left ignored where it is, as under nohup.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        ignore_signals()
        first()
        raise Stopped

    before = {number: signal.signal(number, stop) for number in stopping()}
    stopped = False
    try:
        yield
    except Stopped:
        stopped = True
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_IGN if stopped else handler)


def ignore_signals() -> None:
    """From here on nothing interrupts."""
    for number in STOPPING:
        signal.signal(number, signal.SIG_IGN)


def hurry_at_signals(hurry: Callable[[], None]) -> None:
    """From here on SIGINT and SIGTERM call `hurry`. SIGHUP means nothing: a terminal that goes may send two."""
    ignore_signals()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: hurry())


def spawn(command: Sequence[str], log: Path) -> "subprocess.Popen[bytes]":
    """Start a process that writes to `log`, in a session of its own: the terminal's Ctrl-C does not reach it.

    Where util-linux's setpriv is there, SIGTERM reaches it when this process dies, however it dies.
    """
    with_parent = ["setpriv", "--pdeathsig", "TERM"] if shutil.which("setpriv") else []
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as file:
        return subprocess.Popen(
            [*with_parent, *command],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def end(process: "subprocess.Popen[bytes]", seconds: float = TERMINATE_SECONDS) -> None:
    """SIGTERM; for one that is still there after `seconds` another, which cuts off what runs; at last SIGKILL."""
    for patience in (seconds, CUT_SECONDS):
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(patience)
            return
    process.kill()
    process.wait()


def kill(process: "subprocess.Popen[bytes]") -> None:
    """SIGKILL for one that hangs, and for what it has started; returns when it has ended."""
    import psutil

    below = []
    with suppress(psutil.NoSuchProcess):
        below = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.wait()
    for each in below:
        with suppress(psutil.NoSuchProcess):
            each.kill()
    psutil.wait_procs(below, timeout=KILL_SECONDS)


def descendants() -> "list[psutil.Process]":
    """Every process below this one."""
    import psutil

    found: list[psutil.Process] = psutil.Process().children(recursive=True)
    return found


def end_all(processes: "Iterable[psutil.Process]", seconds: float = TERMINATE_SECONDS) -> None:
    """Give these some time to end by themselves, then SIGKILL; returns when none is left.

    Children of this process are ended with them: one whose start a signal interrupted is known to nobody.
    """
    import psutil

    children = psutil.Process().children()
    for child in children:
        child.terminate()
    _, alive = psutil.wait_procs({*processes, *children}, timeout=seconds)
    for process in alive:
        with suppress(psutil.NoSuchProcess):  # a pid that somebody else has now is left alone
            process.kill()
    psutil.wait_procs(alive, timeout=KILL_SECONDS)  # one that hangs in a device's driver can't be killed

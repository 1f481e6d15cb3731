"""Signals and child processes of `polyfleet serve`."""

import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

TERMINATE_SECONDS = 10.0
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stopped(BaseException):
    """A signal asks to stop. Not an Exception, so that nothing on the way swallows it."""


@contextmanager
def stop_on_signals() -> Iterator[None]:
    """Raise Stopped in the main thread at the first signal; later ones don't disturb the end that it begins."""

    def stop(number: int, frame: FrameType | None) -> None:
        ignore_signals()
        raise Stopped

    before = {number: signal.signal(number, stop) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def ignore_signals() -> None:
    """From here on nothing interrupts."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


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
    """SIGTERM, and SIGKILL for one that is still there after `seconds`."""
    process.terminate()
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()

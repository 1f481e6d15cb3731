"""The signals that stop a process: which they are, and what they do before it has something to drain."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def stopping() -> tuple[signal.Signals, ...]:
    """Those that stop this process: all of STOPPING, but for a SIGHUP that is ignored, as under nohup."""
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return tuple(number for number in STOPPING if not (ignored and number is signal.SIGHUP))


def is_stopped(pid: int) -> bool:
    """Whether a process is stopped, as by SIGSTOP; False where the operating system does not tell (not Linux)."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] in ("T", "t")  # a name may have spaces and brackets


def end_at_signals() -> None:
    """Let them end this process at once, without a stack trace: for the start, before there is anything to drain.

    Process 1 of a container needs a handler for it, since the kernel spares it what is a signal's default. Its exit
    status is then 128 + the signal's number.
    """
    for number in stopping():
        signal.signal(number, _exit if os.getpid() == 1 else signal.SIG_DFL)


def _exit(number: int, _: object) -> None:
    os._exit(128 + number)


@contextmanager
def held() -> Iterator[None]:
    """Let them wait. A process that is started meanwhile has them waiting until it calls `ignore`."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def ignore() -> None:
    """Ignore them, those that wait included: for a process that ends by other means."""
    for number in STOPPING:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)


def ignore_hangups() -> None:
    """Ignore SIGHUP from here on: a terminal that goes may send two, and the second one is nobody's wish to hurry."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)

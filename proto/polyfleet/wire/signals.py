"""SIGTERM and SIGINT between a process's first instruction and the moment that it has something to drain."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

STOPPING = (signal.SIGTERM, signal.SIGINT)


def end_at_signals() -> None:
    """Let both end this process at once, without a stack trace: for the start, before there is anything to drain.

    Process 1 of a container needs a handler for it, since the kernel spares it what is a signal's default. Its exit
    status is then 128 + the signal's number.
    """
    for number in STOPPING:
        signal.signal(number, _exit if os.getpid() == 1 else signal.SIG_DFL)


def _exit(number: int, _: object) -> None:
    os._exit(128 + number)


@contextmanager
def held() -> Iterator[None]:
    """Let both wait. A process that is started meanwhile has them waiting until it calls `ignore`."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def ignore() -> None:
    """Ignore both, those that wait included: for a process that ends by other means."""
    for number in STOPPING:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)

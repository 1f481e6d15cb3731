"""Child processes: starting one apart from the terminal's Ctrl-C, and ending everything that was started."""

import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

TERMINATE_SECONDS = 10.0
SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stopped(BaseException):
    """SIGINT or SIGTERM arrived. Not an Exception, so that nothing on the way swallows it."""


@contextmanager
def stop_on_signals() -> Iterator[None]:
    """Raise Stopped in the main thread at the first SIGINT or SIGTERM; further ones are ignored, so that what was
    started is ended in peace."""
    before = [signal.getsignal(number) for number in SIGNALS]
    listen_for_signals()
    try:
        yield
    finally:
        for number, handler in zip(SIGNALS, before, strict=True):
            signal.signal(number, handler)


def listen_for_signals() -> None:
    """Install the handlers of `stop_on_signals`; again where a library has installed its own meanwhile."""

    def stop(number: int, frame: FrameType | None) -> None:
        ignore_signals()
        raise Stopped

    for number in SIGNALS:
        signal.signal(number, stop)


def ignore_signals() -> None:
    """From here on nothing interrupts the end."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def spawn(command: Sequence[str], log: Path) -> "subprocess.Popen[bytes]":
    """Start a process in a session of its own (the terminal's Ctrl-C does not reach it) that writes to `log`."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as file:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
        )


def end(process: "subprocess.Popen[bytes]", seconds: float = TERMINATE_SECONDS) -> None:
    """SIGTERM, and SIGKILL for one that is still there after `seconds`."""
    process.terminate()
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class Descendants:
    """Every process below this one, remembered by `look` so that orphans are known too."""

    def __init__(self) -> None:
        import psutil

        self._me = psutil.Process()
        self._seen: set[psutil.Process] = set()

    def look(self) -> None:
        """Remember who is there now."""
        self._seen.update(self._me.children(recursive=True))

    def end(self, seconds: float = TERMINATE_SECONDS) -> None:
        """End all that were seen, and what they started meanwhile; gives back when none is left."""
        import psutil

        self.look()
        for process in self._seen:
            with suppress(psutil.NoSuchProcess):  # compares start times: a reused pid is somebody else
                process.terminate()
        _, alive = psutil.wait_procs(self._seen, timeout=seconds)
        while alive:
            for process in alive:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            self.look()
            _, alive = psutil.wait_procs([process for process in self._seen if process.is_running()], timeout=1)

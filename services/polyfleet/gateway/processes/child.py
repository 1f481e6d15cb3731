"""One gateway process, as the one that started it sees it."""

import asyncio
import os
import signal
import sys
import time
from asyncio.subprocess import Process
from contextlib import suppress
from urllib.error import HTTPError
from urllib.request import urlopen

from polyfleet.gateway.processes.sums import Families, parsed
from polyfleet.process.signals import is_stopped

ASK_SECONDS = 5.0
STOPPED_LOOKS = 3  # a second apart: whoever it serves waits
UNANSWERED_LOOKS = 6  # each of which has waited for ASK_SECONDS: a busy one answers within that
READY_FD = "--ready-fd"


class Child:
    """Runs from `start` on. `families` are its metrics as they were last read."""

    def __init__(self, process: Process, ready: asyncio.StreamReader) -> None:
        self.process, self._ready = process, ready
        self._metrics = ""
        self.staying = True  # it was not told to end
        self._stopped = self._unanswered = 0  # looks in a row
        self.families: Families = {}

    @classmethod
    async def start(cls, arguments: list[str]) -> "Child":
        """A gateway with these arguments and a metrics port of its own. Raises OSError."""
        ours, theirs = os.pipe()
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "polyfleet.gateway", *arguments, READY_FD, str(theirs)),
                stdin=asyncio.subprocess.PIPE,  # which ends with this process, however that ends
                pass_fds=[theirs],
                start_new_session=True,  # signals of the terminal are for the one that started it
            )
        except BaseException:
            os.close(ours)
            raise
        finally:
            os.close(theirs)
        reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, os.fdopen(ours, "rb"))
        return cls(process, reader)

    async def listens(self) -> bool:
        """Wait until it does; False when it has ended before."""
        line = await self._ready.readline()
        self._metrics = line.decode().strip()
        return bool(self._metrics)

    async def end(self) -> int:
        """Wait for its end; its exit status. One that ends well tells its metrics a last time."""
        if last := await self._ready.read():
            with suppress(ValueError):
                self.families = parsed(last.decode())
        return await self.process.wait()

    async def look(self) -> None:
        """Read its metrics; they stay as they were when it does not answer."""
        with suppress(OSError, ValueError):
            self.families = parsed((await self._ask("/metrics"))[1])

    async def readiness(self) -> tuple[bool, str]:
        """Whether it can serve, and its own words where not."""
        began = time.monotonic()
        try:
            status, text = await self._ask("/readyz")
        except (OSError, ValueError):
            waited = time.monotonic() - began >= ASK_SECONDS
            self._unanswered = self._unanswered + 1 if waited else 0
            return False, "The gateway's process does not answer."
        self._unanswered = 0
        return status == 200, text.strip()

    def hangs(self) -> bool:
        """Whether it has been stopped (SIGSTOP) for this look and some before, or has not answered for long."""
        self._stopped = self._stopped + 1 if is_stopped(self.process.pid) else 0
        return self._stopped >= STOPPED_LOOKS or self._unanswered >= UNANSWERED_LOOKS

    def kill(self) -> None:
        """End it at once, and all that it serves."""
        with suppress(ProcessLookupError):
            self.process.kill()

    async def _ask(self, path: str) -> tuple[int, str]:
        """Raises OSError and ValueError."""
        if not self._metrics:
            raise ValueError("it does not listen yet")
        return await asyncio.to_thread(fetched, f"http://{self._metrics}{path}")

    def leave(self) -> None:
        """Let it drain and end; the second time, end what runs."""
        self.staying = False
        with suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGTERM)


def fetched(url: str) -> tuple[int, str]:
    """Status and text. Raises OSError."""
    try:
        with urlopen(url, timeout=ASK_SECONDS) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        return error.code, error.read().decode()

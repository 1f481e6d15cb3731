"""One gateway process, as the one that started it sees it."""

import asyncio
import os
import signal
import sys
import time
from asyncio.subprocess import Process
from collections.abc import Sequence
from contextlib import suppress

from polyfleet.gateway.processes.handing import Hand, Handing
from polyfleet.gateway.processes.sums import Families, parsed
from polyfleet.process.hangs import Looks, fetched

FDS = "--fds"


class Child:
    """Runs from `start` on. `families` are its metrics as they were last read."""

    def __init__(self, process: Process, ready: asyncio.StreamReader, hands: list[tuple[Handing, Hand]]) -> None:
        self.process, self._ready, self._hands = process, ready, hands
        self._metrics = ""
        self.staying = True  # it was not told to end
        self._looks = Looks()
        self.families: Families = {}

    @classmethod
    async def start(cls, arguments: list[str], ports: Sequence[Handing]) -> "Child":
        """A gateway with these arguments and a metrics port of its own, at those ports of callers. Raises OSError."""
        ours, theirs = os.pipe()
        hands = [(port, port.join()) for port in ports]
        fds = [theirs, *(hand.theirs.fileno() for _, hand in hands)]
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "polyfleet.gateway", *arguments, FDS, *map(str, fds)),
                stdin=asyncio.subprocess.PIPE,  # which ends with this process, however that ends
                pass_fds=fds,
                start_new_session=True,  # signals of the terminal are for the one that started it
            )
        except BaseException:
            os.close(ours)
            raise
        finally:
            os.close(theirs)
            for _, hand in hands:
                hand.theirs.close()
        reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, os.fdopen(ours, "rb"))
        return cls(process, reader, hands)

    async def listens(self) -> bool:
        """Wait until it does, and let it have connections; False when it has ended before."""
        line = await self._ready.readline()
        self._metrics = line.decode().strip()
        if self._metrics and self.staying:
            for port, hand in self._hands:
                port.ready(hand)
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
            text = (await self._ask("/metrics"))[1]
            self.families = await asyncio.to_thread(parsed, text)  # beside connections that come meanwhile

    async def readiness(self) -> tuple[bool, str]:
        """Whether it can serve, and its own words where not."""
        began = time.monotonic()
        try:
            status, text = await self._ask("/readyz")
        except (OSError, ValueError):
            return False, "The gateway's process does not answer."
        finally:
            self._looks.asked(time.monotonic() - began)
        return status == 200, text.strip()

    def hangs(self) -> bool:
        """Whether it has been stopped (SIGSTOP) for this look and some before, or has not answered for long."""
        self._looks.at(self.process.pid)
        return self._looks.hung

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
        for port, hand in self._hands:
            port.leave(hand)
        with suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGTERM)

"""One process beside the gateway that answers messages in frames, as the gateway sees it."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from typing import NamedTuple

from polyfleet.text.process import LENGTH, Answer, read_answer


class Lost(NamedTuple):
    """The process ended, or was ended; `status` is its exit status, None when it took too long."""

    status: int | None


class JobProcess(asyncio.SubprocessProtocol):
    """One running process. `tell` gets its answers, one to each frame that is sent, and at last how it ended."""

    def __init__(self, tell: Callable[[Answer | Lost], None]) -> None:
        self.loading = True  # it has not answered its Load yet
        self.killed = False
        self._tell = tell
        self._buffer = bytearray()
        self._timer: asyncio.TimerHandle | None = None
        self._late = False
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @classmethod
    async def start(cls, tell: Callable[[Answer | Lost], None]) -> "JobProcess":
        """In a session of its own: a signal for the gateway's group is not for it. Raises OSError."""
        _, process = await asyncio.get_running_loop().subprocess_exec(
            lambda: cls(tell),
            *(sys.executable, "-m", "polyfleet.text.process"),
            stderr=asyncio.subprocess.DEVNULL,
            env={**os.environ, "TOKENIZERS_PARALLELISM": "false"},
            start_new_session=True,
        )
        return process

    def send(self, framed: bytes) -> None:
        """Have a message answered, behind those before it."""
        self._stdin.write(framed)

    def limit(self, seconds: float) -> None:
        """It ends unless its next answer comes within so many."""
        self._timer = asyncio.get_running_loop().call_later(seconds, self._too_late)

    def kill(self) -> None:
        """End it now."""
        self.killed = True
        self._transport.close()

    @property
    def ended(self) -> bool:
        """Whether it has."""
        return self._ended.done()

    async def wait(self) -> None:
        """Until it has ended."""
        await self._ended

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._transport.get_pid()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.SubprocessProtocol, here and below."""
        assert isinstance(transport, asyncio.SubprocessTransport)
        stdin = transport.get_pipe_transport(0)
        assert isinstance(stdin, asyncio.WriteTransport)
        self._transport, self._stdin = transport, stdin

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        """Answers, or parts of them."""
        self._buffer += data
        buffer = self._buffer
        while len(buffer) >= LENGTH.size and len(buffer) >= (end := LENGTH.size + LENGTH.unpack_from(buffer)[0]):
            encoded = bytes(buffer[LENGTH.size : end])
            del buffer[:end]
            self._told(read_answer(encoded))

    def connection_lost(self, error: Exception | None) -> None:
        """It has ended, and all that it said has come."""
        self._ended.set_result(None)
        status = self._transport.get_returncode()
        self._told(Lost(None if self._late or status == -signal.SIGALRM else status))

    def _too_late(self) -> None:
        self._late = True
        self.kill()

    def _told(self, answer: Answer | Lost) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._tell(answer)

"""A process beside the gateway that makes the prompts of one model: started, asked, bounded, started again."""

import asyncio
import logging
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from polyfleet.gateway.errors import ResourceExhausted, Unavailable
from polyfleet.text.errors import TextAssetsError
from polyfleet.text.process import (
    LENGTH,
    Answer,
    Done,
    Encoded,
    Job,
    Load,
    Made,
    PreparedImage,
    Refused,
    Unusable,
    frame,
    read_answer,
)
from polyfleet.wire.limits import FieldError

MEMORY_BYTES = 256 * 1024 * 1024  # that a job may take
LOAD_SECONDS = 120.0
GRACE_SECONDS = 1.0  # for the job of a client who has left: starting the process again takes about as long
RETRY_SECONDS = 1.0
MAX_WAITING_BYTES = 32 * 1024 * 1024
Result = Done | Encoded | Made | PreparedImage
log = logging.getLogger(__name__)


class _Lost(NamedTuple):
    """The process ended, or was ended; `status` is its exit status, None when it took too long."""

    status: int | None


class _Process(asyncio.SubprocessProtocol):
    """One running process. Its answers come by calls, since each prompt of the gateway takes one."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self._buffer = bytearray()
        self._tell: Callable[[Answer | _Lost], None] | None = None  # who waits for an answer
        self._timer: asyncio.TimerHandle | None = None
        self._late = False
        self._ended: asyncio.Future[None] = loop.create_future()

    @classmethod
    async def start(cls) -> "_Process":
        """In a session of its own: a signal for the gateway's group is not for it. Raises OSError."""
        _, process = await asyncio.get_running_loop().subprocess_exec(
            cls,
            *(sys.executable, "-m", "polyfleet.text.process"),
            stderr=asyncio.subprocess.DEVNULL,
            env={**os.environ, "TOKENIZERS_PARALLELISM": "false"},
            start_new_session=True,
        )
        return process

    def ask(self, framed: bytes, seconds: float, tell: Callable[[Answer | _Lost], None]) -> None:
        """Have one message answered; `tell` is called once."""
        self._tell = tell
        self._timer = asyncio.get_running_loop().call_later(seconds, self._too_late)
        self._stdin.write(framed)

    async def answer(self, framed: bytes, seconds: float) -> Answer | _Lost:
        """The same for who waits."""
        came: asyncio.Future[Answer | _Lost] = asyncio.get_running_loop().create_future()

        def tell(answer: Answer | _Lost) -> None:
            if not came.done():
                came.set_result(answer)

        self.ask(framed, seconds, tell)
        return await came

    def kill(self) -> None:
        """End it now."""
        self._transport.close()

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
        """An answer, or a part of one."""
        buffer = self._buffer
        buffer += data
        if len(buffer) >= LENGTH.size and len(buffer) >= (end := LENGTH.size + LENGTH.unpack_from(buffer)[0]):
            encoded = bytes(buffer[LENGTH.size : end])
            del buffer[:end]
            self._told(read_answer(encoded))

    def connection_lost(self, error: Exception | None) -> None:
        """It has ended, and all that it said has come."""
        self._ended.set_result(None)
        status = self._transport.get_returncode()
        self._told(_Lost(None if self._late or status == -signal.SIGALRM else status))

    def _too_late(self) -> None:
        self._late = True
        self.kill()

    def _told(self, answer: Answer | _Lost) -> None:
        tell, self._tell = self._tell, None
        if self._timer is not None:
            self._timer.cancel()
        if tell is not None:
            tell(answer)


@dataclass(eq=False, slots=True)
class _Work:
    """A job that runs or waits, and who asked for it."""

    job: Job
    framed: bytes
    result: asyncio.Future[Result]


class TextProcess:
    """Runs jobs one by one, first come first served. Lives in one event loop.

    The process starts with the first job and ends when there has been none for `idle_seconds`.
    """

    def __init__(
        self, document: bytes, max_waiting: int, idle_seconds: float, memory_bytes: int = MEMORY_BYTES
    ) -> None:
        """`memory_bytes`: that a job may take."""
        self._memory_bytes = memory_bytes
        self._document = document
        self._max_waiting = max_waiting
        self._idle_seconds = idle_seconds
        self._running: _Work | None = None
        self._waiting: deque[_Work] = deque()
        self._process: _Process | None = None
        self._idle: asyncio.TimerHandle | None = None
        self._starting: asyncio.Task[None] | None = None
        self._chores: set[asyncio.Task[None]] = set()  # starting and ending processes

    @property
    def pid(self) -> int | None:
        """Of the process, while there is one."""
        return self._process.pid if self._process else None

    async def run(self, job: Job) -> Result:
        """What comes of a job. When the caller is cancelled, the job soon is too.

        Raises FieldError (refused; it took too long or too much memory), TextAssetsError, ResourceExhausted (too many
        wait already), Unavailable (there can't be a process).
        """
        try:
            framed = frame(job)
        except UnicodeEncodeError:
            raise FieldError(job.field, "holds half a surrogate pair, which is no Unicode text") from None
        waiting, loop = self._waiting, asyncio.get_running_loop()
        if waiting and (
            len(waiting) >= self._max_waiting
            or sum(len(each.framed) for each in waiting) + len(framed) > MAX_WAITING_BYTES
        ):
            raise ResourceExhausted("Too many prompts wait to be encoded.", retry_after=RETRY_SECONDS)
        work = _Work(job, framed, loop.create_future())
        waiting.append(work)
        if self._running is None:
            self._next()
        try:
            return await work.result
        except asyncio.CancelledError:
            if work is self._running:
                loop.call_later(GRACE_SECONDS, self._give_up, work)
            elif work in waiting:
                waiting.remove(work)
            elif not work.result.cancelled():
                work.result.exception()  # which nobody else will look at
            raise

    def _next(self) -> None:
        """Begin what waits first, or wait for a job."""
        if self._idle is not None:
            self._idle.cancel()
        if not self._waiting:
            self._running = None
            self._idle = asyncio.get_running_loop().call_later(self._idle_seconds, self._kill)
            return
        work = self._running = self._waiting.popleft()
        if self._process is None:
            self._starting = self._do(self._start(work))
        else:
            self._ask(self._process, work)

    def _ask(self, process: _Process, work: _Work) -> None:
        process.ask(work.framed, work.job.seconds + GRACE_SECONDS, partial(self._answered, work))

    def _answered(self, work: _Work, answer: Answer | _Lost) -> None:
        job = work.job
        if isinstance(answer, _Lost):
            self._kill()
            log.warning("A prompt broke its process.", extra={"status": answer.status, "job": type(job).__name__})
            too_much = f"takes over {self._memory_bytes >> 20} MiB of memory"
            answer = Refused(job.field, job.too_long if answer.status is None else too_much)
        if work.result.done():
            pass  # the caller has left
        elif isinstance(answer, Refused):
            work.result.set_exception(FieldError(answer.field, answer.problem, answer.reason))
        elif isinstance(answer, Unusable):
            work.result.set_exception(TextAssetsError(answer.problem))
        else:
            work.result.set_result(answer)
        self._next()

    async def _start(self, work: _Work) -> None:
        """Have a process, and begin this job there."""
        answer: Answer | _Lost
        try:
            process = self._process = await _Process.start()
            answer = await process.answer(frame(Load(self._document, self._memory_bytes)), LOAD_SECONDS)
        except OSError as error:
            answer = Refused("", repr(error))
        if isinstance(answer, Done):
            self._ask(process, work)
            return
        self._kill()
        problem: Exception
        if isinstance(answer, Unusable):
            problem = TextAssetsError(answer.problem)
        else:
            log.error("No process for prompts: %r", answer)
            problem = Unavailable("The gateway can't start a process for prompts.", retry_after=RETRY_SECONDS)
        if not work.result.done():
            work.result.set_exception(problem)
        self._next()

    def _give_up(self, work: _Work) -> None:
        if work is self._running:
            self._kill()

    def _kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            self._do(process.wait())

    def _do(self, chore: Coroutine[object, object, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(chore)
        self._chores.add(task)
        task.add_done_callback(self._chores.discard)
        return task

    async def close(self) -> None:
        """End the process, and every job with it."""
        for work in (*self._waiting, *((self._running,) if self._running else ())):
            work.result.cancel()
        self._waiting.clear()
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.gather(self._starting, return_exceptions=True)
        self._kill()
        await asyncio.gather(*self._chores, return_exceptions=True)
        if self._idle is not None:
            self._idle.cancel()

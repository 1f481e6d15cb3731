"""A process beside the gateway that makes the prompts of one model: started, asked, bounded, started again."""

import asyncio
import logging
import os
import signal
import sys
from contextlib import suppress

from polyfleet.gateway.errors import ResourceExhausted, Unavailable
from polyfleet.process.within import Within
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


class _ProcessLost(Exception):
    """The process ended, or was ended; `status` is its exit status, None when it took too long."""

    def __init__(self, status: int | None) -> None:
        super().__init__()
        self.status = None if status == -signal.SIGALRM else status


class _Process:
    """One running process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process, self._stdin, self._stdout = process, process.stdin, process.stdout

    @classmethod
    async def start(cls) -> "_Process":
        """In a session of its own: a signal for the gateway's group is not for it. Raises OSError."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "polyfleet.text.process"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env={**os.environ, "TOKENIZERS_PARALLELISM": "false"},
            start_new_session=True,
        )
        return cls(process)

    async def ask(self, framed: bytes, seconds: float) -> Answer:
        """Its answer. Raises _ProcessLost."""
        try:
            with Within(seconds):
                return read_answer(await self._exchange(framed))
        except asyncio.TimeoutError:
            self.kill()
            raise _ProcessLost(None) from None
        except (OSError, asyncio.IncompleteReadError):
            raise _ProcessLost(await self._process.wait()) from None

    async def _exchange(self, framed: bytes) -> bytes:
        self._stdin.write(framed)
        head = await self._stdout.readexactly(LENGTH.size)
        return await self._stdout.readexactly(LENGTH.unpack(head)[0])

    def kill(self) -> None:
        """End it now."""
        self._stdin.close()
        with suppress(ProcessLookupError):
            self._process.kill()

    async def wait(self) -> None:
        """Until it has ended."""
        await self._process.wait()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid


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
        self._turn = asyncio.Lock()
        self._waiting: list[int] = []  # bytes of each job that waits
        self._process: _Process | None = None
        self._idle: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[Result]] = set()
        self._ending: set[asyncio.Task[None]] = set()

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
        if self._waiting and (
            len(self._waiting) >= self._max_waiting or sum(self._waiting) + len(framed) > MAX_WAITING_BYTES
        ):
            raise ResourceExhausted("Too many prompts wait to be encoded.", retry_after=RETRY_SECONDS)
        began = asyncio.Event()
        task = asyncio.create_task(self._run(job, framed, began))
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if began.is_set():
                asyncio.get_running_loop().call_later(GRACE_SECONDS, self._give_up, task)
            else:
                task.cancel()
            raise

    async def _run(self, job: Job, framed: bytes, began: asyncio.Event) -> Result:
        self._waiting.append(len(framed))
        try:
            await self._turn.acquire()
        finally:
            self._waiting.remove(len(framed))
        began.set()
        if self._idle:
            self._idle.cancel()
        try:
            answer = await self._ask(job, framed)
        finally:
            self._idle = asyncio.get_running_loop().call_later(self._idle_seconds, self._kill)
            self._turn.release()
        if isinstance(answer, Refused):
            raise FieldError(answer.field, answer.problem, answer.reason)
        if isinstance(answer, Unusable):
            raise TextAssetsError(answer.problem)
        return answer

    async def _ask(self, job: Job, framed: bytes) -> Answer:
        process = self._process or await self._start()
        try:
            return await process.ask(framed, job.seconds + GRACE_SECONDS)
        except _ProcessLost as lost:
            self._kill()
            log.warning("A prompt broke its process.", extra={"status": lost.status, "job": type(job).__name__})
            too_much = f"takes over {self._memory_bytes >> 20} MiB of memory"
            return Refused(job.field, job.too_long if lost.status is None else too_much)

    async def _start(self) -> _Process:
        try:
            process = self._process = await _Process.start()
            answer = await process.ask(frame(Load(self._document, self._memory_bytes)), LOAD_SECONDS)
        except (OSError, _ProcessLost) as error:
            self._kill()
            log.error("No process for prompts: %r", error)
            raise Unavailable("The gateway can't start a process for prompts.", retry_after=RETRY_SECONDS) from None
        if isinstance(answer, Unusable):
            self._kill()
            raise TextAssetsError(answer.problem)
        return process

    def _give_up(self, task: "asyncio.Task[Result]") -> None:
        if not task.done():
            self._kill()

    def _ended(self, task: "asyncio.Task[Result]") -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # the caller may have left

    def _kill(self) -> None:
        process, self._process = self._process, None
        if process:
            process.kill()
            task = asyncio.create_task(process.wait())
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    async def close(self) -> None:
        """End the process, and every job with it."""
        if self._idle:
            self._idle.cancel()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._idle:
            self._idle.cancel()
        self._kill()
        await asyncio.gather(*self._ending)

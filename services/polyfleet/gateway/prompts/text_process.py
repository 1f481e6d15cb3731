"""A process beside the gateway that makes the prompts of one model: started, asked, bounded, started again."""

import asyncio
import logging
from collections import deque
from dataclasses import dataclass

from polyfleet.gateway.errors import ResourceExhausted, Unavailable
from polyfleet.gateway.prompts.job_process import JobProcess, Lost
from polyfleet.process.tasks import Tasks
from polyfleet.text.errors import TextAssetsError
from polyfleet.text.process import (
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
)
from polyfleet.wire.limits import FieldError

MEMORY_BYTES = 256 * 1024 * 1024  # that a job may take
LOAD_SECONDS = 120.0
GRACE_SECONDS = 1.0  # for the job of a client who has left: starting the process again takes about as long
RETRY_SECONDS = 1.0
AHEAD_BYTES = 32 * 1024  # of jobs that are sent before those before them are answered
MAX_WAITING_BYTES = 32 * 1024 * 1024
Result = Done | Encoded | Made | PreparedImage
log = logging.getLogger(__name__)


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
        self._waiting: deque[_Work] = deque()
        self._sent: deque[_Work] = deque()  # to the process; the first one runs
        self._process: JobProcess | None = None
        self._idle: asyncio.TimerHandle | None = None
        self._starting: asyncio.Task[None] | None = None
        self._chores = Tasks()

    @property
    def pid(self) -> int | None:
        """Of the process, while there is one."""
        return self._process.pid if self._process and not self._process.killed else None

    async def run(self, job: Job) -> Result:
        """What comes of a job. When the caller is cancelled, the job soon is too.

        Raises FieldError (refused; it took too long or too much memory), TextAssetsError, ResourceExhausted (too many
        wait already), Unavailable (there can't be a process).
        """
        try:
            framed = frame(job)
        except UnicodeEncodeError:
            raise FieldError(job.field, "holds half a surrogate pair, which is no Unicode text") from None
        waiting = [each for each in (*self._sent, *self._waiting)[1:] if not each.result.done()]
        if waiting and (
            len(waiting) >= self._max_waiting
            or sum(len(each.framed) for each in waiting) + len(framed) > MAX_WAITING_BYTES
        ):
            raise ResourceExhausted("Too many prompts wait to be encoded.", retry_after=RETRY_SECONDS)
        work = _Work(job, framed, asyncio.get_running_loop().create_future())
        self._waiting.append(work)
        self._go_on()
        try:
            return await work.result
        except asyncio.CancelledError:
            self._left(work)
            raise

    def _left(self, work: _Work) -> None:
        """Its caller wants it no more."""
        if work in self._waiting:
            self._waiting.remove(work)
        elif self._sent and work is self._sent[0]:
            asyncio.get_running_loop().call_later(GRACE_SECONDS, self._give_up, work)
        elif work.result.done() and not work.result.cancelled():
            work.result.exception()  # which nobody else will look at

    def _go_on(self) -> None:
        """Send what waits, some of it ahead, so that the process need not wait for its next job."""
        process, waiting, sent = self._process, self._waiting, self._sent
        if self._idle is not None:
            self._idle.cancel()
        if process is None:
            if waiting and self._starting is None:
                self._starting = self._chores.start(self._start())
            return
        while waiting and not (process.loading or process.killed):
            if sent and sum(len(each.framed) for each in sent) + len(waiting[0].framed) > AHEAD_BYTES:
                return
            sent.append(work := waiting.popleft())
            process.send(work.framed)
            if len(sent) == 1:
                self._begin(process, work)
        if not (sent or waiting):
            self._idle = asyncio.get_running_loop().call_later(self._idle_seconds, process.kill)

    def _begin(self, process: JobProcess, work: _Work) -> None:
        """It is the first of those that were sent."""
        process.limit(work.job.seconds + GRACE_SECONDS)
        if work.result.done():  # its caller has left
            asyncio.get_running_loop().call_later(GRACE_SECONDS, self._give_up, work)

    def _told(self, answer: Answer | Lost) -> None:
        if (process := self._process) is None:
            return  # it ended while it started: see _start
        if isinstance(answer, Lost):
            self._process = None
            self._lost(process, answer)
        elif process.loading:
            process.loading = False
            if not isinstance(answer, Done):
                self._cannot(answer)
                process.kill()
        else:
            self._settle(self._sent.popleft(), answer)
            if self._sent:
                self._begin(process, self._sent[0])
        self._go_on()

    def _lost(self, process: JobProcess, lost: Lost) -> None:
        """The job that ran is at fault; those behind it have another process."""
        if process.loading:
            if lost.status is None or not process.killed:  # else this end has closed it
                self._cannot(lost)
        elif self._sent:
            job = (work := self._sent.popleft()).job
            log.warning("A prompt broke its process.", extra={"status": lost.status, "job": type(job).__name__})
            too_much = f"takes over {self._memory_bytes >> 20} MiB of memory"
            self._settle(work, Refused(job.field, job.too_long if lost.status is None else too_much))
        self._waiting.extendleft(reversed(self._sent))
        self._sent.clear()

    def _settle(self, work: _Work, answer: Answer) -> None:
        if work.result.done():
            return  # its caller has left
        if isinstance(answer, Refused):
            work.result.set_exception(FieldError(answer.field, answer.problem, answer.reason))
        elif isinstance(answer, Unusable):
            work.result.set_exception(TextAssetsError(answer.problem))
        else:
            work.result.set_result(answer)

    async def _start(self) -> None:
        try:
            process = await JobProcess.start(self._told)
        except OSError as error:
            self._cannot(error)
        else:
            process.send(frame(Load(self._document, self._memory_bytes)))
            process.limit(LOAD_SECONDS)
            if process.ended:
                self._cannot(Lost(None))
            else:
                self._process = process
        self._starting = None
        self._go_on()

    def _cannot(self, why: Answer | Lost | OSError) -> None:
        """There is no process for the first job that waits; the next one tries again."""
        problem: Exception
        if isinstance(why, Unusable):
            problem = TextAssetsError(why.problem)
        else:
            log.error("No process for prompts: %r", why)
            problem = Unavailable("The gateway can't start a process for prompts.", retry_after=RETRY_SECONDS)
        if self._waiting and not (work := self._waiting.popleft()).result.done():
            work.result.set_exception(problem)

    def _give_up(self, work: _Work) -> None:
        if self._process is not None and self._sent and work is self._sent[0]:
            self._process.kill()

    async def close(self) -> None:
        """End the process, and every job with it."""
        for work in (*self._sent, *self._waiting):
            work.result.cancel()
        self._waiting.clear()
        await self._chores.end()
        if (process := self._process) is not None:
            self._sent.clear()
            process.kill()
            await process.wait()
        if self._idle is not None:
            self._idle.cancel()

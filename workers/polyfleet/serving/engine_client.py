"""The worker's end of its engine process: start it with a model, feed it, hear its news, know why it ended."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence

from polyfleet.engine.facts import EngineStatus, LoadedAdapter
from polyfleet.process import signals
from polyfleet.process.signals import is_stopped
from polyfleet.serving import messages
from polyfleet.serving.log_tail import DESCRIPTOR_VARIABLE, EngineLines
from polyfleet.serving.messages import (
    AdapterNews,
    Add,
    AddAdapter,
    Cancel,
    DropAdapter,
    Event,
    Failed,
    Load,
    Loaded,
    Loading,
    StepNews,
)
from polyfleet.transfer.settings import TransferSettings
from polyfleet.wire.options import EngineOptions
from polyfleet.wire.requests import SequenceRequest

MODULE = "polyfleet.serving.engine_process"  # that the process runs
EXIT_SECONDS = 2.0
KILL_SECONDS = 10.0
OnProgress = Callable[[float, str], None]


class LoadError(Exception):
    """A model can't be served. The message is one sentence."""


class EngineClient:
    """One engine process, from the start of loading to its end.

    `load` either returns a process that is ready or raises LoadError and leaves none behind. `news` ends when the
    process ends; `reason` then says why in one sentence.
    """

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        urgent: asyncio.StreamWriter,
    ) -> None:
        self._process = process
        self._reader = reader
        self._writer = writer
        self._urgent = urgent
        self._lines: EngineLines | None = None
        self._num_adds = 0
        self._adapters: dict[int, asyncio.Future[LoadedAdapter]] = {}  # under way, by number
        self._num_adapters = 0
        self.counted_adds = 0  # that `status` counts, from the first on
        self.loaded: Loaded
        self.status = EngineStatus()
        self.reason = ""
        self._ended = False  # nothing more is answered
        self.heard = 0.0  # its last word, by the event loop's clock

    @classmethod
    async def load(
        cls,
        path: str,
        options: EngineOptions,
        on_progress: OnProgress,
        *,
        adapters: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        canary_interval: float = 0.0,
        transfer: TransferSettings | None = None,
        log_level: str = "info",
        module: str = "",
    ) -> "EngineClient":
        """Start a process and load a model in it; cancelling ends the process.

        `environment` adds variables to its own; `module` is what it runs instead of MODULE; `adapters` are folders that
        must be loaded too; `transfer` is where it gives prefixes to other workers.
        """
        (mine, its), (my_urgent, its_urgent) = socket.socketpair(), socket.socketpair()
        lines = EngineLines()
        command = [sys.executable, "-m", module or MODULE, "--log-level", log_level]
        command += ["--socket", str(its.fileno()), "--urgent", str(its_urgent.fileno())]
        variables = {**os.environ, **(environment or {}), DESCRIPTOR_VARIABLE: str(lines.descriptor)}
        inherited = its.fileno(), its_urgent.fileno(), lines.descriptor
        with its, its_urgent, signals.held():
            process = subprocess.Popen(command, pass_fds=inherited, stdin=subprocess.DEVNULL, env=variables)
        lines.listen()
        reader, writer = await asyncio.open_connection(sock=mine)
        _, urgent = await asyncio.open_connection(sock=my_urgent)
        self = cls(process, reader, writer, urgent)
        self._lines = lines
        try:
            self._send(writer, Load(path, options, canary_interval, list(adapters), transfer))
            await self._loaded(on_progress)
        except BaseException:
            await self.stop()
            raise
        return self

    async def _loaded(self, on_progress: OnProgress) -> None:
        while (event := await self._receive()) is not None:
            if isinstance(event, Loading):
                on_progress(event.progress, event.phase)
            elif isinstance(event, Loaded):
                self.loaded, self.status = event, event.status
                return
            elif isinstance(event, Failed):
                raise LoadError(event.reason)
        raise LoadError(f"The engine process {await self._ending()} while it loaded the model.")

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def stopped(self) -> bool:
        """Whether its process is stopped, as by SIGSTOP."""
        return is_stopped(self.pid)

    def add(self, request: SequenceRequest) -> int:
        """Queue a sequence, its number from 1 on; a refusal comes with the news."""
        self._num_adds += 1
        self._send(self._writer, Add(request))
        return self._num_adds

    def cancel(self, sequence_id: str) -> None:
        """End a sequence; nothing follows but what was under way."""
        self._send(self._urgent, Cancel(sequence_id, self._num_adds))

    async def add_adapter(self, path: str) -> LoadedAdapter:
        """Load an adapter's folder; the answer comes with the news, which somebody must read. Raises LoadError."""
        self._num_adapters += 1
        number, answer = self._num_adapters, asyncio.get_running_loop().create_future()
        self._adapters[number] = answer
        self._send(self._writer, AddAdapter(number, path))
        if self._ended:
            self._end_adapters()
        try:
            found: LoadedAdapter = await answer
            return found
        finally:
            self._adapters.pop(number, None)

    def drop_adapter(self, fingerprint: str) -> None:
        """No new sequence gets it."""
        self._send(self._writer, DropAdapter(fingerprint))

    def _answer(self, news: AdapterNews) -> None:
        answer = self._adapters.get(news.number)
        if answer is None or answer.done():
            return
        if news.adapter is None:
            answer.set_exception(LoadError(news.reason))
        else:
            answer.set_result(news.adapter)

    def _end_adapters(self) -> None:
        self._ended = True
        for number in list(self._adapters):
            self._answer(AdapterNews(number, None, self.reason or "The engine process ended."))

    async def news(self) -> AsyncIterator[StepNews]:
        """Each step's news until the process ends."""
        while (event := await self._receive()) is not None:
            if isinstance(event, StepNews):
                if event.status is not None:
                    self.status, self.counted_adds = event.status, event.num_adds
                yield event
            elif isinstance(event, AdapterNews):
                self._answer(event)
            elif isinstance(event, Failed):
                self.reason = event.reason
        self.reason = self.reason or f"The engine process {await self._ending()}."
        self._end_adapters()

    async def stop(self) -> bool:
        """End the process: ask by closing the socket, insist after 2 s. True: its memory and device are free.

        False: it is still there 10 s after SIGKILL, as one that hangs in a driver may be.
        """
        for writer in (self._writer, self._urgent):
            writer.transport.abort()  # a process that does not read would never let it close
        self._end_adapters()
        try:
            await self._wait(EXIT_SECONDS)
        finally:  # also when cancelled meanwhile
            if self._process.poll() is None:
                self._process.kill()
        gone = await self._wait(KILL_SECONDS) is not None
        if self._lines is not None:
            self._lines.close()
        return gone

    def _send(self, writer: asyncio.StreamWriter, command: messages.Command) -> None:
        if not writer.is_closing():
            writer.write(messages.frame(command))

    async def _receive(self) -> Event | None:
        """The next event; None at the end."""
        try:
            length = messages.frame_length(await self._reader.readexactly(messages.HEADER_BYTES))
            event = messages.decode_event(await self._reader.readexactly(length))
            self.heard = asyncio.get_running_loop().time()
            return event
        except (asyncio.IncompleteReadError, OSError):
            return None

    async def _ending(self) -> str:
        status = await self._wait(EXIT_SECONDS)
        if status is None:
            return "closed its socket"
        if status < 0:
            return f"was killed by {signal.Signals(-status).name}"
        return f"ended with status {status}"

    async def _wait(self, timeout: float | None) -> int | None:
        """Its exit status (negative: by that signal); None when it still runs after `timeout` seconds."""
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout if timeout is not None else float("inf")
        pause = 0.002
        while (status := self._process.poll()) is None and loop.time() < end:
            await asyncio.sleep(pause)
            pause = min(pause * 2, 0.1)
        return status

"""One completion on its way to the client: as one JSON body, or as server-sent events."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from polyfleet.gateway.errors import ApiError, DataLoss
from polyfleet.gateway.http.errors import internal_error
from polyfleet.gateway.http.events import EventStream
from polyfleet.gateway.http.openai.writer import Writer
from polyfleet.gateway.http.streams import until_disconnect
from polyfleet.process.tasks import end
from polyfleet.wire.answers import Delta, Usage
from polyfleet.wire.gathered import GatheredChoice

HEADERS_SECONDS = 1.0  # in which a worker's refusal can still become a status


class Admission:
    """Whether all of `count` requests have been admitted: they are well-formed, and a worker will have them."""

    def __init__(self, count: int) -> None:
        self._missing = count
        self._all = asyncio.Event()

    def one(self) -> None:
        """One more has."""
        self._missing -= 1
        if not self._missing:
            self._all.set()

    async def wait(self) -> None:
        """Until all have."""
        await self._all.wait()


@dataclass(frozen=True, slots=True)
class Answer:
    """An ASGI application for one request: runs it, writes what comes of it, cancels it when the client leaves.

    `deltas` starts the request. What goes wrong before the headers are sent becomes a status; later, in a stream, an
    error event, behind which the body ends without `[DONE]`. A stream's headers are sent with the first delta, but not
    later than HEADERS_SECONDS behind the admission, or `comment_seconds` without one.
    """

    deltas: Callable[[], AsyncGenerator[Delta, None]]
    admission: Admission
    writer: Writer
    request_id: str
    stream: bool
    comment_seconds: float = 10.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer. Raises nothing that the client's behaviour can cause."""
        run = self._run_stream if self.stream else self._run_whole
        await until_disconnect(receive, run(scope, receive, send))

    async def _run_whole(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self.deltas()) as deltas:
            try:
                response = Response(await self._gather(deltas), media_type="application/json")
            except ApiError as error:
                response = self.writer.refusal(error)
        await response(scope, receive, send)

    async def _gather(self, deltas: AsyncGenerator[Delta, None]) -> bytes:
        choices: dict[int, GatheredChoice] = {}
        usage: Usage | None = None
        async for delta in deltas:
            choices.setdefault(delta.choice, GatheredChoice()).add(delta)
            usage = delta.usage or usage
        if usage is None:
            raise DataLoss("The answer ended too early; send the request again.")
        return self.writer.whole(choices, usage)

    async def _run_stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self.deltas()) as deltas:
            first = asyncio.ensure_future(_first(deltas))
            try:
                await self._until_due(first)
                error = first.exception() if first.done() else None
                if isinstance(error, ApiError):
                    await self.writer.refusal(error)(scope, receive, send)
                elif error is not None:
                    raise error
                else:
                    await self._send_events(first, deltas, EventStream(send, self.comment_seconds))
            finally:
                await end(first)

    async def _until_due(self, first: "asyncio.Future[Delta]") -> None:
        """Wait for the first delta as long as the headers can wait."""
        admitted = asyncio.ensure_future(self.admission.wait())
        try:
            await asyncio.wait((first, admitted), timeout=self.comment_seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await end(admitted)
        if admitted.done() and not admitted.cancelled():
            await asyncio.wait((first,), timeout=HEADERS_SECONDS)

    async def _send_events(
        self, first: "asyncio.Future[Delta]", deltas: AsyncGenerator[Delta, None], events: EventStream
    ) -> None:
        async with events:
            try:
                if not first.done():
                    await events.comment()  # some proxies keep headers back until there is a body
                delta = await first
                written = self.writer.begin() + self.writer.events(delta)
                usage = delta.usage
                if written:
                    await events.write(written)
                async for delta in deltas:
                    if written := self.writer.events(delta):
                        await events.write(written)
                    usage = delta.usage or usage
                if usage is None:
                    raise DataLoss("The answer ended too early; send the request again.")
            except Exception as error:
                told = error if isinstance(error, ApiError) else internal_error(error, self.request_id)
                await events.end(self.writer.failure(told))
                return
            await events.end(self.writer.end(usage))


async def _first(deltas: AsyncGenerator[Delta, None]) -> Delta:
    first = await anext(deltas, None)
    if first is None:
        raise DataLoss("The answer ended before it began; send the request again.")
    return first

"""One completion on its way to the client: as one JSON body, or as server-sent events."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field

import msgspec
from msgspec import UNSET, UnsetType
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from polyfleet.gateway.errors import ApiError, DataLoss
from polyfleet.gateway.http.errors import error_body, error_response, internal_error
from polyfleet.gateway.http.events import EventStream, event
from polyfleet.gateway.http.gathered import Gathered
from polyfleet.gateway.http.replies import Choice, Reply, UsageReply, usage_reply
from polyfleet.gateway.http.shapes import Shape
from polyfleet.gateway.http.streams import until_disconnect
from polyfleet.wire.answers import Delta, Usage

HEADERS_SECONDS = 1.0  # in which a worker's refusal can still become a status
DONE = event(b"[DONE]")


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
    shape: Shape
    request_id: str
    model: str
    stream: bool
    include_usage: bool = False
    continuous_usage: bool = False
    comment_seconds: float = 10.0
    created: int = field(default_factory=lambda: int(time.time()))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer. Raises nothing that the client's behaviour can cause."""
        run = self._run_stream if self.stream else self._run_whole
        await until_disconnect(receive, run(scope, receive, send))

    async def _run_whole(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self.deltas()) as deltas:
            try:
                response = Response(msgspec.json.encode(await self._gather(deltas)), media_type="application/json")
            except ApiError as error:
                response = error_response(error, self.shape.renames)
        await response(scope, receive, send)

    async def _gather(self, deltas: AsyncGenerator[Delta, None]) -> Reply:
        choices: dict[int, Gathered] = {}
        usage: Usage | None = None
        async for delta in deltas:
            choices.setdefault(delta.choice, Gathered()).add(delta)
            usage = delta.usage or usage
        if usage is None:
            raise DataLoss("The answer ended too early; send the request again.")
        whole = [self.shape.whole(index, choice) for index, choice in sorted(choices.items())]
        return self._reply(self.shape.whole_object, whole, usage_reply(usage))

    async def _run_stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self.deltas()) as deltas:
            first = asyncio.ensure_future(_first(deltas))
            try:
                await self._until_due(first)
                error = first.exception() if first.done() else None
                if isinstance(error, ApiError):
                    await error_response(error, self.shape.renames)(scope, receive, send)
                elif error is not None:
                    raise error
                else:
                    await self._send_events(first, deltas, EventStream(send, self.comment_seconds))
            finally:
                first.cancel()
                await asyncio.gather(first, return_exceptions=True)

    async def _until_due(self, first: "asyncio.Future[Delta]") -> None:
        """Wait for the first delta as long as the headers can wait."""
        admitted = asyncio.ensure_future(self.admission.wait())
        try:
            await asyncio.wait((first, admitted), timeout=self.comment_seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            admitted.cancel()
        if admitted.done() and not admitted.cancelled():
            await asyncio.wait((first,), timeout=HEADERS_SECONDS)

    async def _send_events(
        self, first: "asyncio.Future[Delta]", deltas: AsyncGenerator[Delta, None], events: EventStream
    ) -> None:
        async with events:
            try:
                if not first.done():
                    await events.comment()  # some proxies keep headers back until there is a body
                usage = await self._send_chunks(await first, events)
                async for delta in deltas:
                    usage = await self._send_chunks(delta, events) or usage
                if usage is None:
                    raise DataLoss("The answer ended too early; send the request again.")
            except Exception as error:
                told = error if isinstance(error, ApiError) else internal_error(error, self.request_id)
                await events.end(event(error_body(told, self.shape.renames)))
                return
            end = DONE
            if self.include_usage:
                last = self._reply(self.shape.chunk_object, [], usage_reply(usage))
                end = event(msgspec.json.encode(last)) + DONE
            await events.end(end)

    async def _send_chunks(self, delta: Delta, events: EventStream) -> Usage | None:
        usage: UsageReply | UnsetType | None = None if self.include_usage else UNSET
        if self.continuous_usage and delta.usage is not None:
            usage = usage_reply(delta.usage)
        for choice in self.shape.chunks(delta):
            await events.write(msgspec.json.encode(self._reply(self.shape.chunk_object, [choice], usage)))
        return delta.usage

    def _reply(self, kind: str, choices: list[Choice], usage: UsageReply | UnsetType | None) -> Reply:
        return Reply(self.shape.id_prefix + self.request_id, kind, self.created, self.model, choices, usage)


async def _first(deltas: AsyncGenerator[Delta, None]) -> Delta:
    first = await anext(deltas, None)
    if first is None:
        raise DataLoss("The answer ended before it began; send the request again.")
    return first

"""One completion on its way to the client: as one JSON body, or as server-sent events."""

import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field

import msgspec
from msgspec import UNSET, UnsetType
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from polyfleet.gateway.api import Delta, FinishReason, TokenLogprob, Usage
from polyfleet.gateway.errors import ApiError, DataLoss
from polyfleet.gateway.http.errors import error_body, error_response, internal_error
from polyfleet.gateway.http.relay import until_disconnect
from polyfleet.gateway.http.replies import Choice, Reply, UsageReply, usage_reply
from polyfleet.gateway.http.shapes import Shape

SSE_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # tells proxies such as nginx to pass each event on at once
]
DONE = b"data: [DONE]\n\n"


@dataclass(slots=True)
class _Gathered:
    """One choice of a whole answer, as it comes together."""

    texts: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: FinishReason | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """An ASGI application for one request: runs it, writes what comes of it, cancels it when the client leaves.

    `deltas` starts the request. What goes wrong before the first delta becomes a status; later, in a stream, an error
    event, behind which the body ends without `[DONE]`.
    """

    deltas: Callable[[], AsyncGenerator[Delta, None]]
    shape: Shape
    request_id: str
    model: str
    stream: bool
    include_usage: bool = False
    created: int = field(default_factory=lambda: int(time.time()))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer. Raises nothing that the client's behaviour can cause."""
        await until_disconnect(receive, self._run(scope, receive, send))

    async def _run(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self.deltas()) as deltas:
            try:
                if self.stream:
                    first = await _first(deltas)
                else:
                    body = msgspec.json.encode(await self._gather(deltas))
            except ApiError as error:
                await error_response(error, self.shape.renames)(scope, receive, send)
                return
            if self.stream:
                await self._send_events(first, deltas, send)
            else:
                await Response(body, media_type="application/json")(scope, receive, send)

    async def _gather(self, deltas: AsyncGenerator[Delta, None]) -> Reply:
        choices: dict[int, _Gathered] = {}
        usage: Usage | None = None
        async for delta in deltas:
            choice = choices.setdefault(delta.choice, _Gathered())
            choice.texts.append(delta.text)
            choice.logprobs += delta.logprobs
            choice.finish_reason = delta.finish_reason or choice.finish_reason
            usage = delta.usage or usage
        if usage is None:
            raise DataLoss("The answer ended too early; send the request again.")
        whole: list[Choice] = [
            self.shape.whole(index, "".join(choice.texts), tuple(choice.logprobs), choice.finish_reason)
            for index, choice in sorted(choices.items())
        ]
        return self._reply(self.shape.whole_object, whole, usage_reply(usage))

    async def _send_events(self, first: Delta, deltas: AsyncGenerator[Delta, None], send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": SSE_HEADERS})
        try:
            usage = await self._send_chunk(first, send)
            async for delta in deltas:
                usage = await self._send_chunk(delta, send) or usage
            if usage is None:
                raise DataLoss("The answer ended too early; send the request again.")
        except Exception as error:
            told = error if isinstance(error, ApiError) else internal_error(error, self.request_id)
            await send(_body(_event(error_body(told, self.shape.renames))))
            return
        end = DONE
        if self.include_usage:
            end = _event(msgspec.json.encode(self._reply(self.shape.chunk_object, [], usage_reply(usage)))) + DONE
        await send(_body(end))

    async def _send_chunk(self, delta: Delta, send: Send) -> Usage | None:
        choice = self.shape.chunk(delta)
        if choice is not None:
            reply = self._reply(self.shape.chunk_object, [choice], None if self.include_usage else UNSET)
            await send(_body(_event(msgspec.json.encode(reply)), more=True))
        return delta.usage

    def _reply(self, kind: str, choices: list[Choice], usage: UsageReply | UnsetType | None) -> Reply:
        return Reply(self.shape.id_prefix + self.request_id, kind, self.created, self.model, choices, usage)


async def _first(deltas: AsyncGenerator[Delta, None]) -> Delta:
    first = await anext(deltas, None)
    if first is None:
        raise DataLoss("The answer ended before it began; send the request again.")
    return first


def _event(data: bytes) -> bytes:
    return b"data: " + data + b"\n\n"


def _body(data: bytes, *, more: bool = False) -> dict[str, object]:
    return {"type": "http.response.body", "body": data, "more_body": more}

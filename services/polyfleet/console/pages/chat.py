"""The chat: the page, and answers as they are made. What is said is kept in the browser alone."""

import time
from collections import OrderedDict
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from polyfleet.client import AsyncClient, AsyncCompletionStream, Delta, PolyfleetError, Tls
from polyfleet.console.config import ConsoleConfig
from polyfleet.console.fleet.words import GATEWAY_GONE
from polyfleet.console.pages.guard import Guard, body_of, session_of
from polyfleet.console.pages.look import Look
from polyfleet.process.tasks import Tasks

MAX_CLIENTS = 256  # one a key; the one that was not used for longest is closed
MODELS_SECONDS = 10.0


class Said(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One message of a chat."""

    role: Literal["system", "user", "assistant"]
    content: str


class Asked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the page asks for: a chat, and what it sets of the answer's making. Limits are the gateway's."""

    messages: Annotated[tuple[Said, ...], Meta(min_length=1)]
    model: str = ""
    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()

    def options(self) -> dict[str, Any]:
        """For the client: those that are set."""
        given = msgspec.structs.asdict(self)
        del given["messages"]
        return {name: value for name, value in given.items() if value not in (None, "", ())}


class ChatPages:
    """Routes of its own. Calls to the gateway carry the visitor's own key."""

    def __init__(self, guard: Guard, look: Look, config: ConsoleConfig) -> None:
        self._guard, self._look, self._config = guard, look, config
        self._clients: OrderedDict[str, AsyncClient] = OrderedDict()
        self._closing = Tasks()

    def routes(self) -> list[Route]:
        """Where it answers."""
        anybody = self._guard.anybody
        return [
            Route("/chat", anybody(self._page), methods=["GET"]),
            Route("/chat/models", anybody(self._models), methods=["GET"]),
            Route("/chat/answer", anybody(self._answer), methods=["POST"]),
        ]

    async def _page(self, request: Request) -> Response:
        return self._look.page(request, "chat.html", gateway=self._config.gateway)

    async def _models(self, request: Request) -> Response:
        try:
            found = await self._client(session_of(request).key).models(timeout=MODELS_SECONDS)
        except PolyfleetError as error:
            return JSONResponse({"problem": problem_of(error, self._gone(request))}, 503)
        names = [each.name for each in found if not (each.embeds_only or each.ids_only)]
        return JSONResponse({"models": names})

    async def _answer(self, request: Request) -> Response:
        try:
            asked = msgspec.json.decode(await body_of(request), type=Asked)
        except msgspec.DecodeError as error:
            return JSONResponse({"problem": f"This chat can't be read: {error}."}, 400)
        client = self._client(session_of(request).key)
        messages = [msgspec.structs.asdict(each) for each in asked.messages]
        stream = client.stream(messages=messages, **asked.options())
        return StreamingResponse(told(stream, self._gone(request)), media_type="text/event-stream")

    def _gone(self, request: Request) -> str:
        return self._look.text(request, GATEWAY_GONE.format(address=self._config.gateway))

    def _client(self, key: str) -> AsyncClient:
        client = self._clients.get(key)
        if client is None:
            ca_file = self._config.gateway_ca or None
            tls: Tls | bool = Tls(ca_file=ca_file) if self._config.gateway_tls or ca_file else False
            client = self._clients[key] = AsyncClient(self._config.gateway, api_key=key or None, tls=tls)
            if len(self._clients) > MAX_CLIENTS:
                self._closing.start(self._clients.popitem(last=False)[1].close())
        self._clients.move_to_end(key)
        return client


async def told(stream: AsyncCompletionStream, gone: str) -> AsyncGenerator[bytes, None]:
    """An answer as events of JSON: text as it comes, then what it took, or why it broke off (`gone` where
    the gateway is). Left: it is cancelled.
    """
    begun, first = time.monotonic(), None
    try:
        async with stream:
            async for delta in stream:
                if first is None and (delta.text or delta.reasoning):
                    first = time.monotonic() - begun
                yield event(delta_of(delta))
        took = {"seconds": time.monotonic() - begun, "first_seconds": first}
        usage = stream.transcript.completion().usage
        tokens = {"completion_tokens": usage.completion_tokens, "prompt_tokens": usage.prompt_tokens} if usage else {}
        yield event({"done": took | tokens})
    except PolyfleetError as error:
        yield event({"problem": problem_of(error, gone)})
    finally:
        with suppress(PolyfleetError):
            await stream.close()


def problem_of(error: PolyfleetError, gone: str) -> str:
    """What went wrong, in a sentence: `gone` where nobody answers."""
    return gone if "failed to connect" in error.message.lower() else error.message


def delta_of(delta: Delta) -> dict[str, object]:
    """What of it the page shows."""
    finish = delta.finish_reason.value if delta.finish_reason is not None else ""
    shown = {"text": delta.text, "reasoning": delta.reasoning, "worker": delta.worker_id, "finish": finish}
    return {name: value for name, value in shown.items() if value}


def event(content: dict[str, object]) -> bytes:
    """One event of a stream."""
    return b"data: " + msgspec.json.encode(content) + b"\n\n"

"""What all endpoints have in common: authenticate, read the body, count what is refused."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from polyfleet.gateway.api import SESSION, Call
from polyfleet.gateway.errors import ApiError, Code
from polyfleet.gateway.http.bodies import NOTHING
from polyfleet.gateway.http.decoding import BodyT, decode
from polyfleet.gateway.http.errors import BodyTooLarge, UnsupportedMediaType, invalid_field
from polyfleet.gateway.pace import Pace
from polyfleet.gateway.parts import GatewayParts
from polyfleet.wire.limits import FieldError
from polyfleet.wire.placements import ASK
from polyfleet.wire.tracing import TRACEPARENT, TRACESTATE, trace_context

QUICK_BYTES = 65_536  # a body of this size is decoded within a millisecond


class Door:
    """The way into the gateway's core over HTTP; endpoints are methods of its subclasses."""

    def __init__(self, parts: GatewayParts) -> None:
        self._parts = parts
        self._generation = parts.generation
        self._pace = Pace()

    def _authenticate(self, request: Request, method: str) -> Call:
        call = Call(method)
        with self._refusals(call):
            caller = self._parts.auth.check(_authorization(request))
            trace = trace_context(request.headers.getlist(TRACEPARENT), request.headers.getlist(TRACESTATE))
            name, asked = ASK
            explained = None
            if request.headers.get(name) == asked:
                request.scope["placements"] = placements = list[dict[str, Any]]()
                explained = placements.append
            return Call(
                method,
                key_id=caller.key_id,
                tenant=caller.tenant,
                trace=trace,
                max_priority=caller.max_priority,
                session=request.headers.get(SESSION, ""),
                explained=explained,
            )

    @contextmanager
    def _refusals(self, call: Call) -> Iterator[None]:
        """Count what is refused before the core takes it; a FieldError becomes the ApiError that it means."""
        try:
            yield
        except (ApiError, FieldError) as refusal:
            error = invalid_field(refusal) if isinstance(refusal, FieldError) else refusal
            self._count(call, error.code)
            raise error from None

    def _count(self, call: Call, code: Code) -> None:
        """Count what the core does not: it counts the requests that it takes."""
        self._parts.metrics.requests.labels(model="", method=call.method, code=code.name).inc()

    async def _read(self, request: Request, kind: type[BodyT]) -> BodyT:
        if request.headers.get("content-type", "").split(";")[0].strip().lower() != "application/json":
            raise UnsupportedMediaType("The body must be sent with `Content-Type: application/json`.")
        if request.headers.get("content-encoding", "identity").lower() != "identity":
            raise UnsupportedMediaType("The body must be sent as it is, without `Content-Encoding`.")
        limit = self._parts.limits.max_message_bytes
        announced = request.headers.get("content-length", "")
        body = bytearray()
        if announced.isdigit() and int(announced[:20]) > limit:
            raise BodyTooLarge(f"The body is over this server's limit of {limit} bytes.")
        async for chunk in request.stream():
            body += chunk
            if len(body) > limit:
                raise BodyTooLarge(f"The body is over this server's limit of {limit} bytes.")
        if len(body) <= QUICK_BYTES:
            return decode(bytes(body), kind)
        return await self._pace.run(lambda: decode(bytes(body), kind))

    def _model_name(self, asked: str | None) -> str:
        """The name that a reply tells: the one asked for, or that of the only model there is."""
        models = [] if asked else [each for each in self._generation.models() if not each.parent]
        return models[0].name if len(models) == 1 else asked or ""


def in_session(call: Call, body: object) -> Call:
    """The call, in the session that its header names, or else the user or session in its body."""
    said = (getattr(body, name, NOTHING) for name in ("user", "safety_identifier", "prompt_cache_key"))
    texts = (msgspec.json.decode(each) for each in said if bytes(each).startswith(b'"'))
    return replace(call, session=call.session or next(texts, ""))


def json_reply(body: object) -> Response:
    """A whole reply."""
    return Response(msgspec.json.encode(body), media_type="application/json")


def _authorization(request: Request) -> str | None:
    """The header with the caller's key; Anthropic's clients have one of their own."""
    key = request.headers.get("x-api-key")
    return request.headers.get("authorization") or (f"Bearer {key}" if key else None)

"""The endpoints: authenticate, read and decode the body, hand over to the gateway's core."""

from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from polyfleet.gateway.api import Call
from polyfleet.gateway.errors import ApiError, Code
from polyfleet.gateway.http import translate
from polyfleet.gateway.http.answer import Admission, Answer
from polyfleet.gateway.http.bodies import (
    ChatBody,
    CompletionBody,
    EmbeddingsBody,
    GenerateBody,
    StreamOptions,
)
from polyfleet.gateway.http.decoding import BodyT, decode
from polyfleet.gateway.http.errors import BodyTooLarge, UnsupportedMediaType, error_response, invalid_field
from polyfleet.gateway.http.pace import Pace
from polyfleet.gateway.http.replies import ModelList, embeddings_reply, model_reply
from polyfleet.gateway.http.shapes import ChatShape, CompletionShape, Shape
from polyfleet.gateway.http.streams import merge, until_disconnect
from polyfleet.gateway.parts import GatewayParts
from polyfleet.wire.answers import Delta
from polyfleet.wire.limits import FieldError
from polyfleet.wire.requests import EmbedRequest, GenerateRequest
from polyfleet.wire.tracing import TRACEPARENT, TRACESTATE, trace_context

QUICK_BYTES = 65_536  # a body of this size is decoded within a millisecond
EMBEDDING_RENAMES: Mapping[str, str] = {"inputs": "input"}


class Endpoints:
    """One method per route, over the gateway's shared parts."""

    def __init__(self, parts: GatewayParts) -> None:
        self._parts = parts
        self._generation = parts.generation
        self._pace = Pace()

    async def chat(self, request: Request) -> ASGIApp:
        """POST /v1/chat/completions."""
        call = self._authenticate(request, "chat.completions")
        with self._refusals(call):
            body = await self._read(request, ChatBody)
            wanted = translate.chat_request(body, request.scope["request_id"])
        max_tokens = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
        shape = ChatShape(logprobs=wanted.logprobs is not None, max_tokens=max_tokens)
        return self._answer(request, body, [wanted], shape, call)

    async def completions(self, request: Request) -> ASGIApp:
        """POST /v1/completions."""
        call = self._authenticate(request, "completions")
        with self._refusals(call):
            body = await self._read(request, CompletionBody)
            wanted = translate.completion_requests(body, request.scope["request_id"])
        return self._answer(request, body, wanted, CompletionShape(logprobs=body.logprobs is not None), call)

    async def embeddings(self, request: Request) -> ASGIApp:
        """POST /v1/embeddings."""
        call = self._authenticate(request, "embeddings")
        with self._refusals(call):
            body = await self._read(request, EmbeddingsBody)
            wanted = translate.embed_request(body, request.scope["request_id"])

        async def run(scope: Scope, receive: Receive, send: Send) -> None:
            await until_disconnect(receive, self._embed(body, wanted, call, scope, receive, send))

        return run

    async def models(self, request: Request) -> Response:
        """GET /v1/models."""
        call = self._authenticate(request, "models.list")
        self._count(call, Code.OK)
        return _json(ModelList([model_reply(model) for model in self._generation.models()]))

    async def model(self, request: Request) -> Response:
        """GET /v1/models/{name}."""
        call = self._authenticate(request, "models.retrieve")
        with self._refusals(call):
            model = self._generation.model(request.path_params["name"])
        self._count(call, Code.OK)
        return _json(model_reply(model))

    def _authenticate(self, request: Request, method: str) -> Call:
        call = Call(method)
        with self._refusals(call):
            caller = self._parts.auth.check(request.headers.get("authorization"))
            trace = trace_context(request.headers.getlist(TRACEPARENT), request.headers.getlist(TRACESTATE))
            return Call(method, key_id=caller.key_id, tenant=caller.tenant, trace=trace)

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

    def _answer(
        self, request: Request, body: GenerateBody, wanted: list[GenerateRequest], shape: Shape, call: Call
    ) -> Answer:
        admission, options = Admission(len(wanted)), body.stream_options or StreamOptions()
        call = replace(call, admitted=admission.one)
        streams = [partial(self._generation.generate, one, call) for one in wanted]
        continuous = bool(options.continuous_usage_stats)

        def merged() -> AsyncGenerator[Delta, None]:
            return merge([start() for start in streams], wanted[0].n, continuous_usage=continuous)

        return Answer(
            deltas=streams[0] if len(streams) == 1 else merged,
            admission=admission,
            shape=shape,
            request_id=request.scope["request_id"],
            model=self._model_name(body.model),
            stream=bool(body.stream),
            include_usage=bool(options.include_usage),
            continuous_usage=continuous,
            comment_seconds=self._parts.limits.comment_seconds,
        )

    async def _embed(
        self, body: EmbeddingsBody, wanted: EmbedRequest, call: Call, scope: Scope, receive: Receive, send: Send
    ) -> None:
        try:
            result = await self._generation.embed(wanted, call)
        except ApiError as error:
            response = error_response(error, EMBEDDING_RENAMES)
        else:
            response = _json(embeddings_reply(result, self._model_name(body.model), body.encoding_format or "float"))
        await response(scope, receive, send)

    def _model_name(self, asked: str | None) -> str:
        """The name that a reply tells: the one asked for, or that of the only model there is."""
        models = () if asked else self._generation.models()
        return models[0].name if len(models) == 1 else asked or ""


def _json(body: msgspec.Struct) -> Response:
    return Response(msgspec.json.encode(body), media_type="application/json")

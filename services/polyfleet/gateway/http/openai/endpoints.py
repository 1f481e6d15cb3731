"""The endpoints: authenticate, read and decode the body, hand over to the gateway's core."""

from collections.abc import AsyncGenerator
from dataclasses import replace
from functools import partial

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from polyfleet.gateway.api import Call
from polyfleet.gateway.errors import ApiError, Code
from polyfleet.gateway.http.bodies import (
    ChatBody,
    CompletionBody,
    EmbeddingsBody,
    GenerateBody,
    StreamOptions,
)
from polyfleet.gateway.http.door import Door, in_session, json_reply
from polyfleet.gateway.http.errors import error_response
from polyfleet.gateway.http.names import Names
from polyfleet.gateway.http.openai import response_format, translate
from polyfleet.gateway.http.openai.answer import Admission, Answer
from polyfleet.gateway.http.openai.replies import ModelList, embeddings_reply, model_reply
from polyfleet.gateway.http.openai.shapes import ChatShape, CompletionShape, Shape
from polyfleet.gateway.http.openai.writer import CompletionWriter
from polyfleet.gateway.http.streams import merge, until_disconnect
from polyfleet.wire.answers import Delta
from polyfleet.wire.requests import EmbedRequest, GenerateRequest

EMBEDDINGS: Names = {"inputs": "input", "inputs[*].text": "input[*]", "inputs[*].token_ids": "input[*]"}


class Endpoints(Door):
    """The OpenAI endpoints of chats, texts, embeddings and models: one method per route."""

    async def chat(self, request: Request) -> ASGIApp:
        """POST /v1/chat/completions."""
        call = self._authenticate(request, "chat.completions")
        with self._refusals(call):
            body = await self._read(request, ChatBody)
            wanted = translate.chat_request(body, request.scope["request_id"])
        max_tokens = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
        structure = response_format.field_of(body)
        shape = ChatShape(logprobs=wanted.logprobs is not None, max_tokens=max_tokens, structure=structure)
        return self._answer(request, body, [wanted], shape, call)

    async def completions(self, request: Request) -> ASGIApp:
        """POST /v1/completions."""
        call = self._authenticate(request, "completions")
        with self._refusals(call):
            body = await self._read(request, CompletionBody)
            wanted = translate.completion_requests(body, request.scope["request_id"])
        shape = CompletionShape(logprobs=body.logprobs is not None, structure=response_format.field_of(body))
        return self._answer(request, body, wanted, shape, call)

    async def embeddings(self, request: Request) -> ASGIApp:
        """POST /v1/embeddings."""
        call = self._authenticate(request, "embeddings")
        with self._refusals(call):
            body = await self._read(request, EmbeddingsBody)
            wanted = translate.embed_request(body, request.scope["request_id"])

        async def run(scope: Scope, receive: Receive, send: Send) -> None:
            await until_disconnect(receive, self._embed(body, wanted, in_session(call, body), scope, receive, send))

        return run

    async def models(self, request: Request) -> Response:
        """GET /v1/models."""
        call = self._authenticate(request, "models.list")
        self._count(call, Code.OK)
        return json_reply(ModelList([model_reply(model) for model in self._generation.models()]))

    async def model(self, request: Request) -> Response:
        """GET /v1/models/{name}."""
        call = self._authenticate(request, "models.retrieve")
        with self._refusals(call):
            model = self._generation.model(request.path_params["name"])
        self._count(call, Code.OK)
        return json_reply(model_reply(model))

    def _answer(
        self, request: Request, body: GenerateBody, wanted: list[GenerateRequest], shape: Shape, call: Call
    ) -> Answer:
        admission, options = Admission(len(wanted)), body.stream_options or StreamOptions()
        call = replace(in_session(call, body), admitted=admission.one)
        streams = [partial(self._generation.generate, one, call) for one in wanted]
        continuous = bool(options.continuous_usage_stats)

        def merged() -> AsyncGenerator[Delta, None]:
            return merge([start() for start in streams], wanted[0].n, continuous_usage=continuous)

        return Answer(
            deltas=streams[0] if len(streams) == 1 else merged,
            admission=admission,
            writer=CompletionWriter(
                shape,
                request.scope["request_id"],
                self._model_name(body.model),
                include_usage=bool(options.include_usage),
                continuous_usage=continuous,
            ),
            request_id=request.scope["request_id"],
            stream=bool(body.stream),
            comment_seconds=self._parts.limits.comment_seconds,
        )

    async def _embed(
        self, body: EmbeddingsBody, wanted: EmbedRequest, call: Call, scope: Scope, receive: Receive, send: Send
    ) -> None:
        try:
            result = await self._generation.embed(wanted, call)
        except ApiError as error:
            response = error_response(error, EMBEDDINGS)
        else:
            encoding = body.encoding_format or "float"
            response = json_reply(await embeddings_reply(result, self._model_name(body.model), encoding))
        await response(scope, receive, send)

"""The endpoints of other APIs: OpenAI's Responses, Anthropic's Messages, Cohere's Rerank, and what vLLM has."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from polyfleet.gateway.api import Call
from polyfleet.gateway.errors import ApiError
from polyfleet.gateway.http.bodies import DetokenizeBody, TokenizeBody
from polyfleet.gateway.http.door import Door, in_session, json_reply
from polyfleet.gateway.http.errors import error_response
from polyfleet.gateway.http.messages.body import CountBody, MessagesBody, count_request, messages_request
from polyfleet.gateway.http.messages.reply import MessageWriter, messages_error
from polyfleet.gateway.http.names import CHAT, Names
from polyfleet.gateway.http.openai.answer import Admission, Answer
from polyfleet.gateway.http.openai.writer import Writer
from polyfleet.gateway.http.ranking import (
    RerankBody,
    ScoreBody,
    rerank_reply,
    rerank_request,
    score_request,
    scores_reply,
)
from polyfleet.gateway.http.responses.body import ResponsesBody, responses_request
from polyfleet.gateway.http.responses.reply import ResponseWriter
from polyfleet.gateway.http.streams import until_disconnect
from polyfleet.gateway.http.tokens import DetokenizeReply, TokenizeReply, detokenize_request, tokenize_request
from polyfleet.wire.answers import Ranking
from polyfleet.wire.requests import GenerateRequest, RerankRequest


class MoreEndpoints(Door):
    """One method per route."""

    async def responses(self, request: Request) -> ASGIApp:
        """POST /v1/responses."""
        call = self._authenticate(request, "responses")
        with self._refusals(call):
            body = await self._read(request, ResponsesBody)
            wanted = responses_request(body, request.scope["request_id"])
        writer = ResponseWriter(body, wanted.request_id, self._model_name(body.model))
        return self._answer(wanted, writer, in_session(call, body), stream=bool(body.stream))

    async def messages(self, request: Request) -> ASGIApp:
        """POST /v1/messages."""
        try:
            call = self._authenticate(request, "messages")
            with self._refusals(call):
                body = await self._read(request, MessagesBody)
                wanted = messages_request(body, request.scope["request_id"])
        except ApiError as error:
            return messages_error(error, request.scope["request_id"])
        writer = MessageWriter(body, wanted.request_id, self._model_name(body.model))
        return self._answer(wanted, writer, call, stream=bool(body.stream))

    async def count_tokens(self, request: Request) -> Response:
        """POST /v1/messages/count_tokens."""
        try:
            call = self._authenticate(request, "messages.count_tokens")
            with self._refusals(call):
                body = await self._read(request, CountBody)
                wanted = count_request(body)
        except ApiError as error:
            return messages_error(error, request.scope["request_id"])
        try:
            tokens = await self._generation.tokenize(wanted, call)
        except ApiError as error:
            return messages_error(error, request.scope["request_id"], body)
        return json_reply({"input_tokens": len(tokens.token_ids)})

    async def rerank(self, request: Request) -> ASGIApp:
        """POST /v1/rerank."""
        call = self._authenticate(request, "rerank")
        with self._refusals(call):
            body = await self._read(request, RerankBody)
            wanted = rerank_request(body, request.scope["request_id"])
        back = bool(body.return_documents)
        return self._rank(
            wanted, call, {}, lambda done: rerank_reply(done, wanted, self._model_name(body.model), documents=back)
        )

    async def score(self, request: Request) -> ASGIApp:
        """POST /v1/score."""
        call = self._authenticate(request, "score")
        with self._refusals(call):
            body = await self._read(request, ScoreBody)
            wanted = score_request(body, request.scope["request_id"])
        names = {"query": "text_1", "documents": "text_2"}
        return self._rank(wanted, call, names, lambda done: scores_reply(done, wanted, self._model_name(body.model)))

    def _rank(self, wanted: RerankRequest, call: Call, names: Names, reply: Callable[[Ranking], object]) -> ASGIApp:
        """Rank, unless the client leaves; `names` are those of this endpoint."""

        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            try:
                response = json_reply(reply(await self._generation.rerank(wanted, call)))
            except ApiError as error:
                response = error_response(error, names)
            await response(scope, receive, send)

        async def run(scope: Scope, receive: Receive, send: Send) -> None:
            await until_disconnect(receive, answer(scope, receive, send))

        return run

    async def tokenize(self, request: Request) -> Response:
        """POST /tokenize."""
        call = self._authenticate(request, "tokenize")
        with self._refusals(call):
            body = await self._read(request, TokenizeBody)
            wanted = tokenize_request(body)
        try:
            tokens = await self._generation.tokenize(wanted, call)
        except ApiError as error:
            return error_response(error, {**CHAT, "text": "prompt"})
        most = self._generation.model(self._model_name(body.model)).context_length
        pieces = list(tokens.pieces) if body.return_token_strs else None
        return json_reply(TokenizeReply(len(tokens.token_ids), most, list(tokens.token_ids), pieces))

    async def detokenize(self, request: Request) -> Response:
        """POST /detokenize."""
        call = self._authenticate(request, "detokenize")
        with self._refusals(call):
            wanted = detokenize_request(await self._read(request, DetokenizeBody))
        try:
            return json_reply(DetokenizeReply(await self._generation.detokenize(wanted, call)))
        except ApiError as error:
            return error_response(error, {"token_ids": "tokens"})

    def _answer(self, wanted: GenerateRequest, writer: Writer, call: Call, *, stream: bool) -> Answer:
        admission = Admission(1)
        start = partial(self._generation.generate, wanted, replace(call, admitted=admission.one))
        seconds = self._parts.limits.comment_seconds
        return Answer(start, admission, writer, wanted.request_id, stream=stream, comment_seconds=seconds)

"""The gateway's core: a request in, typed deltas out. Both protocols sit on top of it."""

import asyncio
import secrets
from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

from polyfleet.gateway.api import Call
from polyfleet.gateway.config import Limits
from polyfleet.gateway.errors import ApiError, Unavailable
from polyfleet.gateway.pace import PIECE, in_pieces
from polyfleet.gateway.prompts.prompts import Prompt
from polyfleet.gateway.request.accounts import Accounts, Record
from polyfleet.gateway.request.answers import grammar_named, make_grammar, make_parser
from polyfleet.gateway.request.encoding import encode_chat, encode_input, encode_prompt, encode_text
from polyfleet.gateway.request.inbox import Inbox
from polyfleet.gateway.request.models import Models, ServedModel
from polyfleet.gateway.request.output import ChoiceOutput, RequestOutput, in_parts
from polyfleet.gateway.request.queue import RETRY_SECONDS, RequestQueue
from polyfleet.gateway.request.ranking import ranked, ranking_prompts, unit
from polyfleet.gateway.request.sequences import Sequences
from polyfleet.gateway.request.turn import Turn
from polyfleet.gateway.request.validation import (
    check_context,
    check_dimensions,
    check_embed,
    check_embeds,
    check_fit,
    check_generate,
    check_generates,
    check_ids,
    check_priority,
    check_ranks,
    check_rerank,
    check_sampling_fits,
    check_tokenize,
)
from polyfleet.text.stop import StopStrings
from polyfleet.wire.answers import Delta, Embeddings, Model, Ranking, Tokens
from polyfleet.wire.hashing import cache_salt
from polyfleet.wire.ids import new_id
from polyfleet.wire.limits import FieldError
from polyfleet.wire.requests import (
    DetokenizeRequest,
    EmbedRequest,
    GenerateRequest,
    Pooling,
    RerankRequest,
    SequenceRequest,
    TokenizeRequest,
)
from polyfleet.wire.sampling import GREEDY, SamplingParams


class Generation:
    """`GenerationApi` over a fleet. Lives in one event loop."""

    def __init__(
        self, models: Models, queue: RequestQueue, limits: Limits, accounts: Accounts, *, tool_parser: str = "auto"
    ) -> None:
        """`tool_parser`: how models write calls, a name of `text.answer.formats`, auto or none."""
        self._models = models
        self._queue = queue
        self._limits = limits
        self._accounts = accounts
        self._tool_parser = tool_parser
        self._running: set[Inbox] = set()
        self._closed = False

    async def generate(self, request: GenerateRequest, call: Call) -> AsyncGenerator[Delta, None]:
        """See GenerationApi."""
        with self._accounts.open(request.request_id or new_id("req"), call) as record:
            served, prompt, wanted = await self._generate_sequences(request, record, call)
            stops, echo = StopStrings.of(request), _echo(request, served)
            parse = partial(make_parser, request, served, thinking=prompt.thinking, tool_parser=self._tool_parser)
            silent = request.max_tokens == 0
            choices = [ChoiceOutput(each, served.text, stops, parse(), echo, silent=silent) for each in wanted]
            continuous = request.continuous_usage
            output = RequestOutput(choices, len(wanted[0].prompt_ids), record, continuous_usage=continuous)
            with grammar_named(request, wanted[0].grammar):
                async with self._sequences(wanted, served, record) as sequences:
                    call.admitted()
                    while not output.finished:
                        for parcel in await sequences.take():
                            delta = output.take(parcel)
                            if delta is None:
                                continue
                            if delta.finish_reason is not None:
                                sequences.cancel(delta.choice)
                            if delta.prompt_logprobs:
                                *parts, delta = in_parts(delta)
                                for each in parts:
                                    yield each
                            yield delta

    async def _generate_sequences(
        self, request: GenerateRequest, record: Record, call: Call
    ) -> tuple[ServedModel, Prompt, Sequence[SequenceRequest]]:
        """The model, the prompt, and what to compute. Raises ApiError or FieldError."""
        check_generate(request)
        check_priority(request, call.max_priority)
        record.claim()
        served = await self._resolve(request.model, record)
        check_generates(served.model)
        check_sampling_fits(request, served.model)
        if request.stop and served.text is None:
            raise FieldError("stop", f"model {served.model.name} has no tokenizer to find strings with")
        with nullcontext() if request.token_ids else self._tokenizing(served):
            prompt = await encode_prompt(served, request, record.seconds_left)
        field = "text" if request.text is not None else "messages" if request.messages else "token_ids"
        check_fit(field, prompt.num_tokens, request, served.model)
        defaults = {name: value for name, value in served.model.sampling_defaults.items() if name in request.left_out}
        seed = secrets.randbits(64) if request.seed is None else request.seed
        sampling = replace(request.sampling, **defaults, seed=seed)  # type: ignore[arg-type]
        grammar = await make_grammar(request, served, prompt, record.seconds_left, self._tool_parser)
        shared = {**request.shared(), "stop_token_ids": _stop_token_ids(request, prompt, served), "grammar": grammar}
        shared |= {"adapter": served.adapter, "images": prompt.images}
        if request.max_tokens == 0:
            shared["max_tokens"] = 1  # by which the worker tells that the prompt is computed
        first = _sequence(record, call, prompt.token_ids, sampling, **shared)
        return served, prompt, [first, *(replace(first, choice=choice) for choice in range(1, request.n))]

    async def embed(self, request: EmbedRequest, call: Call) -> Embeddings:
        """See GenerationApi."""
        with self._accounts.open(request.request_id or new_id("req"), call) as record:
            served, wanted = await self._embed_sequences(request, record, call)
            vectors = await self._vectors(wanted, served, record)
            scale, most = unit if request.normalize or served.normalized else tuple, request.dimensions or None
            return Embeddings(tuple(await in_pieces(lambda each: scale(each[:most]), vectors)), record.usage)

    async def rerank(self, request: RerankRequest, call: Call) -> Ranking:
        """See GenerationApi."""
        with self._accounts.open(request.request_id or new_id("req"), call) as record:
            check_rerank(request)
            record.claim()
            served = await self._resolve(request.model, record)
            check_ranks(served.model, embeds=served.pooling is not None)
            with self._tokenizing(served):
                prompts = await ranking_prompts(served, request, record.seconds_left)
            shared = {"max_tokens": 1, "pooling": served.pooling or Pooling.MEAN, "adapter": served.adapter}
            wanted = [
                _sequence(record, call, each.token_ids, GREEDY, choice=at, segment_start=each.segment_start, **shared)
                for at, each in enumerate(prompts)
            ]
            vectors = await self._vectors(wanted, served, record)
            return Ranking(ranked(vectors, served, request.top_n), record.usage)

    async def _vectors(
        self, wanted: Sequence[SequenceRequest], served: ServedModel, record: Record
    ) -> list[tuple[float, ...]]:
        """What the model computes for them, in their order."""
        vectors: list[tuple[float, ...]] = [()] * len(wanted)
        num_prompt, num_cached = sum(len(each.prompt_ids) for each in wanted), 0
        async with self._sequences(wanted, served, record) as sequences:
            while not all(vectors):
                for parcel in await sequences.take():
                    if not record.worker_id:
                        record.placed(parcel.worker_id, parcel.queue_seconds)
                    vectors[parcel.choice] = parcel.embedding
                    num_cached += parcel.cached_tokens
        record.prompt(num_prompt, num_cached)
        return vectors

    async def _embed_sequences(
        self, request: EmbedRequest, record: Record, call: Call
    ) -> tuple[ServedModel, Sequence[SequenceRequest]]:
        check_embed(request)
        record.claim()
        served = await self._resolve(request.model, record)
        check_embeds(served.model)
        check_dimensions(request, served.model, served.width)
        wanted = []
        for index, each in enumerate(request.inputs):
            if index % PIECE == PIECE - 1:
                await asyncio.sleep(0)  # short texts are tokenised at once
            with nullcontext() if each.text is None else self._tokenizing(served):
                prompt_ids = await encode_input(f"inputs[{index}]", each, served, record.seconds_left)
            pooling = request.pooling or served.pooling or Pooling.MEAN
            embedding = {"choice": index, "max_tokens": 1, "pooling": pooling, "adapter": served.adapter}
            wanted.append(_sequence(record, call, prompt_ids, GREEDY, **embedding))
        return served, wanted

    async def tokenize(self, request: TokenizeRequest, call: Call) -> Tokens:
        """See GenerationApi."""
        with self._accounts.open(new_id("req"), call) as record:
            return await self._tokenize(request, record)

    async def _tokenize(self, request: TokenizeRequest, record: Record) -> Tokens:
        check_tokenize(request)
        served = await self._resolve(request.model, record)
        field, seconds = "messages" if request.text is None else "text", record.seconds_left
        with self._tokenizing(served):
            if request.text is None:
                prompt = await encode_chat(served, request.chat, seconds, pieces=True)
            else:
                special = request.add_special_tokens
                prompt = await encode_text(
                    served, field, request.text, seconds, add_special_tokens=special, pieces=True
                )
        check_context(field, prompt.num_tokens, served.model)
        return Tokens(prompt.token_ids, prompt.pieces)

    async def detokenize(self, request: DetokenizeRequest, call: Call) -> str:
        """See GenerationApi."""
        with self._accounts.open(new_id("req"), call) as record:
            served = await self._resolve(request.model, record)
            check_ids("token_ids", request.token_ids, served.model)
            check_context("token_ids", len(request.token_ids), served.model)
            if served.text is None:
                raise FieldError("token_ids", f"model {served.model.name} has no tokenizer to spell them with")
            return served.text.spelled(request.token_ids)

    def _tokenizing(self, served: ServedModel) -> AbstractContextManager[object]:
        """Measures how long its inside takes."""
        return self._accounts.metrics.of(served.model.name).tokenize.time()

    def models(self) -> tuple[Model, ...]:
        """See GenerationApi."""
        return self._models.all()

    def model(self, name: str) -> Model:
        """See GenerationApi."""
        return self._models.get(name)

    async def _resolve(self, name: str, record: Record) -> ServedModel:
        if self._closed:
            raise Unavailable("The gateway is shutting down.", retry_after=RETRY_SECONDS)
        record.name_model(self._models.known_name(name))
        served = await self._models.resolve(name, record.seconds_left, record.call.session or record.request_id)
        record.name_model(served.model.name)
        return served

    def _sequences(self, wanted: Sequence[SequenceRequest], served: ServedModel, record: Record) -> Sequences:
        weights = served.fingerprint, served.revision, served.tokenizer_hash
        turn = Turn(served.model.name, wanted[0].priority, *weights)
        turn.tenant, turn.objectives, turn.explained = record.tenant, self._accounts.objectives, record.explained
        turn.seconds_left = (lambda: record.seconds_left) if record.has_deadline else None
        turn.worker_ids, turn.prefills = record.worker_ids, record.prefills
        return Sequences(wanted, turn, self._queue, self._limits, self._accounts.metrics, self._running, record)

    # Shutting down.

    def close(self) -> None:
        """Turn new requests away with UNAVAILABLE; those that run go on."""
        self._closed = True

    async def wait_until_idle(self, seconds: float) -> bool:
        """Whether every request has ended within this time."""
        deadline = asyncio.get_running_loop().time() + seconds
        while self._accounts.ledger.running and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.05)
        return self._accounts.ledger.running == 0

    def abort(self, error: ApiError) -> None:
        """End every running request with this error."""
        for inbox in list(self._running):
            inbox.fail(error)


def _sequence(
    record: Record, call: Call, prompt_ids: tuple[int, ...], sampling: SamplingParams, **more: Any
) -> SequenceRequest:
    """A sequence of this caller, whose name its worker's session gets when it starts."""
    priority = min(more.get("priority", 0), call.max_priority)
    more |= {"request_id": record.request_id, "cache_salt": cache_salt(call.tenant), "priority": priority}
    if call.trace is not None:
        more |= {"traceparent": call.trace.parent, "tracestate": call.trace.state}
    return SequenceRequest("", prompt_ids, sampling, **more)


def _echo(request: GenerateRequest, served: ServedModel) -> str:
    """What the answer's text begins with."""
    if not request.echo:
        return ""
    if request.text is None and served.text is None:
        raise FieldError("echo", f"model {served.model.name} has no tokenizer to spell the prompt with")
    return request.text if request.text is not None else served.text.spelled(request.token_ids) if served.text else ""


def _stop_token_ids(request: GenerateRequest, prompt: Prompt, served: ServedModel) -> tuple[int, ...]:
    """The caller's, and what ends a turn in the model's chat template where its worker does not know that."""
    if request.ignore_eos or served.text is None:
        return request.stop_token_ids
    known = {*request.stop_token_ids, *served.text.end_token_ids}
    return (*request.stop_token_ids, *(each for each in prompt.end_token_ids if each not in known))

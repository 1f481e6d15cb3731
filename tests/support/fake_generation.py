"""A gateway core without a fleet: `FakeGeneration` answers as told, and `gateway_state` wraps it for a front end."""

import asyncio
import threading
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from pathlib import Path

from polyfleet.gateway.api import Call
from polyfleet.gateway.auth import Authenticator
from polyfleet.gateway.config import Limits
from polyfleet.gateway.errors import NotFound
from polyfleet.gateway.health import Health
from polyfleet.gateway.metrics import Metrics
from polyfleet.gateway.parts import GatewayParts
from polyfleet.wire.answers import Delta, Embeddings, FinishReason, Model, Ranked, Ranking, TokenLogprobs, Tokens, Usage
from polyfleet.wire.requests import DetokenizeRequest, EmbedRequest, GenerateRequest, RerankRequest, TokenizeRequest

AnyRequest = GenerateRequest | EmbedRequest | RerankRequest | TokenizeRequest | DetokenizeRequest

WORDS = ("Hello", " there", " friend")
MODEL = Model("org/fake", 2048, 1000, 1, ("cpu",), 1700000000)


def logprob_of(position: int) -> TokenLogprobs:
    """The logprob of the word number `position`."""
    other = TokenLogprobs(50 + position, "\ufffd", -3.0, partial=b"\xf0")
    chosen = TokenLogprobs(position, WORDS[position], -0.5)
    return TokenLogprobs(position, WORDS[position], -0.5, (chosen, other))


@dataclass
class FakeGeneration:
    """Each choice's answer is WORDS and its number, word by word, choices in turn."""

    requests: list[AnyRequest] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    error: Exception | None = None  # raised before anything is answered, or
    error_after: int = 0  # behind this many deltas
    endless: bool = False  # stall behind the first delta, or
    stall_at_once: bool = False  # before it, until cancelled
    flood: int = 0  # answer with so many deltas of 64 KiB instead
    given: int = 0  # deltas taken by the reader
    truncated: bool = False  # end without finish reasons and usage
    cancelled: threading.Event = field(default_factory=threading.Event)
    known: tuple[Model, ...] = (MODEL,)

    def reset(self) -> None:
        """Forget everything, as if new."""
        fresh = FakeGeneration()
        for name in self.__dataclass_fields__:
            setattr(self, name, getattr(fresh, name))

    async def generate(self, request: GenerateRequest, call: Call) -> AsyncGenerator[Delta, None]:
        self._note(request, call)
        try:
            if self.error and not self.error_after:
                raise self.error
            if self.stall_at_once:
                await asyncio.Event().wait()
            call.admitted()
            for number, delta in enumerate(self._deltas(request)):
                if self.error and number == self.error_after:
                    raise self.error
                self.given += 1
                yield delta
                if self.endless:
                    await asyncio.Event().wait()
        except (asyncio.CancelledError, GeneratorExit):
            self.cancelled.set()
            raise

    def _deltas(self, request: GenerateRequest) -> list[Delta]:
        if self.flood:
            return [Delta(0, "x" * 65536)] * self.flood + [Delta(0, finish_reason=FinishReason.STOP, usage=Usage(1))]
        deltas: list[Delta] = []
        said = 0
        for position in range(len(WORDS)):
            for choice in range(request.n):
                last = position == len(WORDS) - 1
                said += 1
                deltas.append(
                    Delta(
                        choice=choice,
                        text=WORDS[position] + (f" {choice}" if last else ""),
                        token_ids=(position,),
                        logprobs=() if request.logprobs is None else (logprob_of(position),),
                        finish_reason=FinishReason.STOP if last and not self.truncated else None,
                        request_id=request.request_id if not deltas else "",
                        usage=Usage(5, 2, said) if request.continuous_usage else None,
                    )
                )
        usage = Usage(prompt_tokens=5, cached_tokens=2, completion_tokens=3 * request.n)
        return deltas if self.truncated else [*deltas, Delta(choice=0, usage=usage)]

    async def embed(self, request: EmbedRequest, call: Call) -> Embeddings:
        self._note(request, call)
        if self.error:
            raise self.error
        if self.stall_at_once:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.cancelled.set()
                raise
        vectors = tuple((float(index), 0.5, -0.25) for index in range(len(request.inputs)))
        return Embeddings(vectors, Usage(prompt_tokens=4 * len(vectors)))

    async def rerank(self, request: RerankRequest, call: Call) -> Ranking:
        self._note(request, call)
        if self.error:
            raise self.error
        results = [Ranked(index, 1 / (1 + len(text))) for index, text in enumerate(request.documents)]
        results.sort(key=lambda each: -each.relevance_score)
        return Ranking(tuple(results[: request.top_n or None]), Usage(prompt_tokens=4 * len(results)))

    async def tokenize(self, request: TokenizeRequest, call: Call) -> Tokens:
        self._note(request, call)
        return Tokens((1,), ("a",))

    async def detokenize(self, request: DetokenizeRequest, call: Call) -> str:
        self._note(request, call)
        return "a" * len(request.token_ids)

    def models(self) -> tuple[Model, ...]:
        return self.known

    def model(self, name: str) -> Model:
        for model in self.known:
            if model.name == name:
                return model
        raise NotFound(f"There is no model {name}; served: {', '.join(model.name for model in self.known)}.")

    def _note(self, request: AnyRequest, call: Call) -> None:
        self.requests.append(request)
        self.calls.append(call)
        if request.model:
            self.model(request.model)


def gateway_state(
    generation: FakeGeneration, *, keys_file: Path | None = None, ready_workers: int = 1, max_body_bytes: int = 4096
) -> GatewayParts:
    """A front end's state around `generation`."""
    return GatewayParts(
        generation=generation,
        auth=Authenticator(keys_file),
        metrics=Metrics(),
        health=Health(lambda: ready_workers),
        limits=Limits(max_message_bytes=max_body_bytes),
    )

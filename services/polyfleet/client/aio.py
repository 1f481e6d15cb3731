"""`AsyncClient`: the client for asyncio. Make it, and use it, in one running event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

import grpc

from polyfleet.client import requests
from polyfleet.client.channel import Tls, channel_options, tls_settings
from polyfleet.client.errors import PolyfleetError, from_rpc_error
from polyfleet.client.requests import Messages
from polyfleet.client.retry import DEFAULT_RETRIES, Attempts, RetryPolicy
from polyfleet.client.transcript import Transcript
from polyfleet.client.types import Completion
from polyfleet.convert.inference import embeddings_of, model_of, ranking_of, tokens_of
from polyfleet.v1 import inference_pb2 as pb
from polyfleet.v1.inference_pb2_grpc import InferenceStub
from polyfleet.wire.answers import Delta, Embeddings, Model, Ranking, Tokens, Vector
from polyfleet.wire.auth import bearer_metadata
from polyfleet.wire.limits import MAX_EMBED_INPUTS
from polyfleet.wire.placements import ASK
from polyfleet.wire.requests import GenerateOptions

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

_T = TypeVar("_T")


class AsyncCompletionStream(AsyncIterator[Delta]):
    """As `CompletionStream`: deltas of a call that starts with the first of them; `close()` cancels it."""

    def __init__(self, start: Callable[[float | None], Any], attempts: Attempts) -> None:
        self.transcript = Transcript()
        self._start = start
        self._attempts = attempts
        self._call: Any = None
        self._done = False

    async def __anext__(self) -> Delta:
        if self._done:
            raise StopAsyncIteration
        try:
            message = await self._next_message()
        except (grpc.RpcError, PolyfleetError) as error:
            closed, self._done = self._done, True
            if closed:
                raise StopAsyncIteration from None
            raise (error if isinstance(error, PolyfleetError) else from_rpc_error(error)) from None
        except asyncio.CancelledError:
            await self.close()
            raise
        if message is None:
            self._done = True
            self.transcript.check_end()
            raise StopAsyncIteration
        return self.transcript.add(message)

    async def close(self) -> None:
        """Cancel the call unless it has ended; the worker stops computing. May be called twice."""
        self._done = True
        if self._call is not None:
            self._call.cancel()

    async def trailers(self) -> Mapping[str, str | bytes]:
        """What the gateway sent behind the last delta; waits for it."""
        return dict(await self._call.trailing_metadata() or ()) if self._call is not None else {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.close()

    async def _next_message(self) -> pb.GenerateResponse | None:
        """The next message, None at a clean end."""
        if self._call is None:
            return await _with_retries(self._first_message, self._attempts)
        return await _read(self._call)

    async def _first_message(self, timeout: float | None) -> pb.GenerateResponse | None:
        self._call = self._start(timeout)
        return await _read(self._call)


class AsyncClient:
    """`Client` for asyncio: the same arguments, the same methods, awaited; leave it by `async with` or `close()`."""

    def __init__(
        self,
        address: str = "127.0.0.1:50051",
        *,
        api_key: str | None = None,
        tls: Tls | bool = False,
        timeout: float | None = None,
        retry: RetryPolicy = DEFAULT_RETRIES,
    ) -> None:
        settings = tls_settings(tls)
        options = channel_options(address, settings)
        self._channel = (
            grpc.aio.secure_channel(address, settings.credentials(), options)
            if settings
            else grpc.aio.insecure_channel(address, options)
        )
        self._stub = InferenceStub(self._channel)
        self._metadata = bearer_metadata(api_key)
        self._timeout = timeout
        self._retry = retry

    def stream(
        self,
        prompt: str | None = None,
        *,
        messages: Messages | None = None,
        token_ids: Sequence[int] | None = None,
        **options: Unpack[GenerateOptions],
    ) -> AsyncCompletionStream:
        """Generate from exactly one of prompt, messages and token ids; options as in `GenerateOptions`."""
        return self._stream(requests.generate_request(prompt, messages, token_ids, options), options.get("timeout"))

    def _stream(
        self, request: pb.GenerateRequest, timeout: float | None, *metadata: tuple[str, str]
    ) -> AsyncCompletionStream:
        def start(left: float | None) -> Any:
            return self._stub.Generate(request, timeout=left, metadata=(*(self._metadata or ()), *metadata))

        return AsyncCompletionStream(start, self._attempts(timeout))

    async def generate(
        self,
        prompt: str | None = None,
        *,
        messages: Messages | None = None,
        token_ids: Sequence[int] | None = None,
        **options: Unpack[GenerateOptions],
    ) -> Completion:
        """As `stream`, but wait for the whole answer."""
        async with self.stream(prompt, messages=messages, token_ids=token_ids, **options) as stream:
            async for _ in stream:
                pass
        return stream.transcript.completion()

    async def chat(self, messages: Messages, **options: Unpack[GenerateOptions]) -> Completion:
        """The next turn of a chat: `generate(messages=…)`."""
        return await self.generate(messages=messages, **options)

    async def explain(
        self,
        prompt: str | None = None,
        *,
        messages: Messages | None = None,
        token_ids: Sequence[int] | None = None,
        **options: Unpack[GenerateOptions],
    ) -> list[dict[str, Any]]:
        """As `generate`, but tell what decided its placements, the last ones last, as `docs/placement.md` has it.

        Empty where the gateway is of a version that gives no reasons.
        """
        request = requests.generate_request(prompt, messages, token_ids, options)
        async with self._stream(request, options.get("timeout"), ASK) as stream:
            async for _ in stream:
                pass
            return requests.placements_of(await stream.trailers())

    async def embed(
        self,
        inputs: str | Sequence[str | Sequence[int]],
        *,
        model: str = "",
        pooling: str = "",
        normalize: bool = False,
        dimensions: int = 0,
        timeout: float | None = None,
    ) -> Embeddings:
        """One vector per input; an input is a text or a list of token ids.

        `pooling` is mean, last or cls; "": the model's own. Of each the first `dimensions` are kept, 0: all.
        """
        request = requests.embed_request(inputs, model, pooling, normalize, dimensions)
        return embeddings_of(await self._unary(self._stub.Embed, request, timeout))

    async def encode(
        self,
        texts: str | Sequence[str],
        normalize: bool = True,
        batch_size: int = MAX_EMBED_INPUTS,
        *,
        model: str = "",
        timeout: float | None = None,
    ) -> tuple[Vector, ...] | Vector:
        """Vectors of all texts, or the vector of one, pooled as the model wants it; `batch_size` of them a call."""
        vectors: list[Vector] = []
        for batch in requests.batches(texts, batch_size):
            done = await self.embed(batch, model=model, normalize=normalize, timeout=timeout)
            vectors += done.vectors
        return vectors[0] if isinstance(texts, str) else tuple(vectors)

    async def rerank(
        self,
        query: str,
        documents: Sequence[str],
        *,
        model: str = "",
        top_n: int = 0,
        max_tokens_per_doc: int = 0,
        timeout: float | None = None,
    ) -> Ranking:
        """The `top_n` (0: all) of the documents that answer the query best, best first.

        At most `max_tokens_per_doc` of each are read, 0: as many as the model's context holds.
        """
        request = requests.rerank_request(query, documents, model, top_n, max_tokens_per_doc)
        return ranking_of(await self._unary(self._stub.Rerank, request, timeout))

    async def tokenize(
        self,
        text: str | None = None,
        *,
        messages: Messages | None = None,
        model: str = "",
        add_special_tokens: bool | None = None,
        tools: Sequence[Mapping[str, Any] | str] | None = None,
        template_arguments: Mapping[str, Any] | None = None,
        timeout: float | None = None,
    ) -> Tokens:
        """The token ids that `generate` would compute for this text, or these messages with these tools."""
        request = requests.tokenize_request(text, messages, model, add_special_tokens, tools, template_arguments)
        return tokens_of(await self._unary(self._stub.Tokenize, request, timeout))

    async def detokenize(self, token_ids: Sequence[int], *, model: str = "", timeout: float | None = None) -> str:
        """The text of token ids, special tokens as they are spelled."""
        request = requests.detokenize_request(token_ids, model)
        text: str = (await self._unary(self._stub.Detokenize, request, timeout)).text
        return text

    async def models(self, *, timeout: float | None = None) -> list[Model]:
        """Every model that is served or being loaded, by name."""
        response = await self._unary(self._stub.ListModels, pb.ListModelsRequest(), timeout)
        return list(map(model_of, response.models))

    async def model(self, name: str, *, timeout: float | None = None) -> Model:
        """One model; NotFoundError when it is not deployed."""
        return model_of(await self._unary(self._stub.GetModel, pb.GetModelRequest(name=name), timeout))

    async def close(self) -> None:
        """Close the connection; running calls are cancelled."""
        await self._channel.close(None)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.close()

    def _attempts(self, timeout: float | None) -> Attempts:
        return Attempts(self._retry, self._timeout if timeout is None else timeout)

    async def _unary(self, method: Any, request: Any, timeout: float | None) -> Any:
        async def call(left: float | None) -> Any:
            return await method(request, timeout=left, metadata=self._metadata)

        return await _with_retries(call, self._attempts(timeout))


async def _read(call: Any) -> pb.GenerateResponse | None:
    message: pb.GenerateResponse | Any = await call.read()
    return message if isinstance(message, pb.GenerateResponse) else None  # else it is gRPC's end-of-file mark


async def _with_retries(call: Callable[[float | None], Awaitable[_T]], attempts: Attempts) -> _T:
    """The first result of `call(seconds left)`; raises the PolyfleetError of the try that is not repeated."""
    while True:
        try:
            return await call(attempts.begin())
        except grpc.RpcError as error:
            failure = from_rpc_error(error)
        await asyncio.sleep(attempts.wait_after(failure))

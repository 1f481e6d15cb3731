"""`polyfleet.v1.Inference` over gRPC: authenticate, convert, hand to the core, convert back."""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager
from typing import Any

import grpc

from polyfleet.convert import inference as convert
from polyfleet.gateway.api import SESSION, Call
from polyfleet.gateway.errors import ApiError, Code, DeadlineExceeded, Internal, InvalidArgument
from polyfleet.gateway.grpc.errors import abort
from polyfleet.gateway.parts import GatewayParts
from polyfleet.placement.explain import told
from polyfleet.process.decoding import refuse_undecodable
from polyfleet.process.within import Within
from polyfleet.v1 import inference_pb2 as pb
from polyfleet.v1 import inference_pb2_grpc
from polyfleet.wire.answers import Delta
from polyfleet.wire.auth import AUTHORIZATION
from polyfleet.wire.limits import FieldError
from polyfleet.wire.placements import ASK, TRAILER
from polyfleet.wire.tracing import TRACEPARENT, TRACESTATE, TraceContext, trace_context

INFERENCE = pb.DESCRIPTOR.services_by_name["Inference"].full_name
GRACE_SECONDS = 1.0  # behind the deadline, for its status to reach a client that reads
log = logging.getLogger(__name__)


class InferenceService(inference_pb2_grpc.InferenceServicer):  # type: ignore[misc]
    """The public service. Whatever happens inside a call ends as a status of that call."""

    def __init__(self, parts: GatewayParts) -> None:
        self._parts = parts
        self._generation = parts.generation
        self._seconds = parts.limits.max_request_seconds + GRACE_SECONDS

    async def Generate(self, request: pb.GenerateRequest, context: Any) -> None:
        """Stream deltas; a client that leaves cancels this coroutine, which closes the core's generator."""
        async with self._guarded("Generate", context) as call:
            with self._counting("Generate"):
                wanted = convert.generate_request(request)
            deltas = self._generation.generate(wanted, call)
            try:
                with Within(self._seconds):
                    await _write_all(deltas, context)
            except asyncio.TimeoutError:  # the core has ended the request; it is the client who does not read
                raise DeadlineExceeded("The request's deadline has passed.") from None

    async def Embed(self, request: pb.EmbedRequest, context: Any) -> pb.EmbedResponse:
        """One vector per input."""
        async with self._guarded("Embed", context) as call:
            with self._counting("Embed"):
                wanted = convert.embed_request(request)
            return convert.embed_response(await self._generation.embed(wanted, call))

    async def Rerank(self, request: pb.RerankRequest, context: Any) -> pb.RerankResponse:
        """Documents, best first."""
        async with self._guarded("Rerank", context) as call:
            with self._counting("Rerank"):
                wanted = convert.rerank_request(request)
            return convert.rerank_response(await self._generation.rerank(wanted, call))

    async def Tokenize(self, request: pb.TokenizeRequest, context: Any) -> pb.TokenizeResponse:
        """Ids and pieces of a prompt."""
        async with self._guarded("Tokenize", context) as call:
            with self._counting("Tokenize"):
                wanted = convert.tokenize_request(request)
            return convert.tokenize_response(await self._generation.tokenize(wanted, call))

    async def Detokenize(self, request: pb.DetokenizeRequest, context: Any) -> pb.DetokenizeResponse:
        """The text of ids."""
        async with self._guarded("Detokenize", context) as call:
            wanted = convert.detokenize_request(request)
            return pb.DetokenizeResponse(text=await self._generation.detokenize(wanted, call))

    async def ListModels(self, request: pb.ListModelsRequest, context: Any) -> pb.ListModelsResponse:
        """All models."""
        async with self._guarded("ListModels", context):
            models = self._generation.models()
            self._count("ListModels", Code.OK)
            return pb.ListModelsResponse(models=map(convert.model_message, models))

    async def GetModel(self, request: pb.GetModelRequest, context: Any) -> pb.Model:
        """One model."""
        async with self._guarded("GetModel", context):
            with self._counting("GetModel"):
                model = self._generation.model(request.name)
            self._count("GetModel", Code.OK)
            return convert.model_message(model)

    async def refuse(self, method: str, context: Any, problem: str) -> None:
        """Answer a call without a usable message as any other bad request: a missing key comes first.

        `method` is its full path.
        """
        service, _, name = method[1:].partition("/")
        if service != INFERENCE:
            await refuse_undecodable(method, context, problem)
        async with self._guarded(name, context):
            with self._counting(name):
                raise InvalidArgument(problem)

    @asynccontextmanager
    async def _guarded(self, method: str, context: Any) -> AsyncIterator[Call]:
        """The authenticated call; errors inside end it with their status."""
        try:
            with self._counting(method):
                metadata = tuple(context.invocation_metadata() or ())
                caller = self._parts.auth.check(dict(metadata).get(AUTHORIZATION))
            placements = list[dict[str, Any]]()
            tell = placements.append if ASK in metadata else None
            trace, seconds = _trace(metadata), context.time_remaining()
            session = dict(metadata).get(SESSION, "")
            yield Call(method, caller.key_id, seconds, caller.tenant, trace, caller.max_priority, session, tell)
            if placements:
                context.set_trailing_metadata(((TRAILER, told(placements)),))
        except (grpc.aio.InternalError, grpc.aio.UsageError):  # of a write
            raise asyncio.CancelledError from None  # the client has left
        except ApiError as error:
            await abort(context, error)
        except FieldError as error:
            await abort(context, InvalidArgument.of(error))
        except Exception:
            log.exception("A call failed.", extra={"method": method})
            await abort(context, Internal("The gateway failed; its log says why."))

    @contextmanager
    def _counting(self, method: str) -> Iterator[None]:
        """Count what is refused inside: the core, which counts its own requests, has not seen it."""
        try:
            yield
        except ApiError as error:
            self._count(method, error.code)
            raise
        except FieldError:
            self._count(method, Code.INVALID_ARGUMENT)
            raise

    def _count(self, method: str, code: Code) -> None:
        self._parts.metrics.requests.labels("", method, code.name).inc()


def _trace(metadata: Sequence[tuple[str, Any]]) -> TraceContext | None:
    parents, states = ([str(v) for key, v in metadata if key == name] for name in (TRACEPARENT, TRACESTATE))
    return trace_context(parents, states)


async def _write_all(deltas: AsyncGenerator[Delta, None], context: Any) -> None:
    async with aclosing(deltas):
        async for delta in deltas:
            await context.write(convert.generate_response(delta))

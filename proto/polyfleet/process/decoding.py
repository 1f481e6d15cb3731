"""Requests that can't be decoded end as INVALID_ARGUMENT. Left alone, gRPC answers UNKNOWN and logs a traceback.

grpc.aio.server(interceptors=[auth, DecodeInterceptor()])  # behind authentication, which comes first
"""

import asyncio
import inspect
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager
from functools import partial
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from polyfleet.process.within import Within

MESSAGE_SECONDS = 60.0
Refuse = Callable[[str, Any, str], Awaitable[None]]
Admit = Callable[[str, Any], Awaitable[None]]
EndCall = Callable[[Any, str], Awaitable[None]]
AskCall = Callable[[Any], Awaitable[None]]
_Interceptor: Any = grpc.aio.ServerInterceptor  # typed or not, as the stubs that happen to be installed have it


class Undecodable(Exception):
    """A message is not what its method takes. `str()` is one sentence for the caller."""


async def refuse_undecodable(method: str, context: Any, problem: str) -> None:
    """End the call with INVALID_ARGUMENT; raises, as every abort does."""
    await context.abort(grpc.StatusCode.INVALID_ARGUMENT, problem)


class DecodeInterceptor(_Interceptor):  # type: ignore[misc]
    """Guards every method of a server. `refuse(method, context, problem)` ends a call: `method` is its full path.

    A method's one message has to come within `message_seconds`. `admit(method, context)` is asked first: it ends a call
    that is not welcome, by what its connection tells.
    """

    def __init__(
        self, refuse: Refuse = refuse_undecodable, message_seconds: float = MESSAGE_SECONDS, admit: Admit | None = None
    ) -> None:
        self._refuse = refuse
        self._message_seconds = message_seconds
        self._admit = admit
        self._guarded: dict[str, tuple[Any, Any]] = {}  # by path: a method's own handler, and the guarded one

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], call: Any) -> Any:
        """The method's own handler, guarded."""
        handler, method = await continuation(call), call.method
        if handler is None:
            return None
        if (known := self._guarded.get(method)) is None or known[0] is not handler:
            admit = partial(self._admit, method) if self._admit else _welcome
            known = handler, guarded(handler, partial(self._refuse, method), self._message_seconds, admit)
            self._guarded[method] = known
        return known[1]


async def _welcome(_: Any) -> None:
    """Every call is."""


def guarded(handler: Any, refuse: EndCall, message_seconds: float = MESSAGE_SECONDS, admit: AskCall = _welcome) -> Any:
    """A handler whose method never sees what can't be decoded.

    It reads its messages itself, also for a method that takes one: gRPC would leave a call without any unanswered.
    """
    arity = ("stream" if handler.request_streaming else "unary", "stream" if handler.response_streaming else "unary")
    method = getattr(handler, "_".join(arity))
    make = grpc.stream_stream_rpc_method_handler if handler.response_streaming else grpc.stream_unary_rpc_method_handler

    async def taken(messages: AsyncIterator[Any], context: Any) -> Any:
        await admit(context)
        return _all(messages) if handler.request_streaming else await _only(messages, message_seconds)

    async def run(messages: AsyncIterator[Any], context: Any) -> Any:
        try:
            with _forgetting():
                call = method(await taken(messages, context), context)
                del messages
                return await call
        except Undecodable as error:
            await refuse(context, str(error))

    async def generate(messages: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        try:
            with _forgetting():
                call = method(await taken(messages, context), context)
                del messages
                async with aclosing(call) as responses:
                    async for response in responses:
                        yield response
        except Undecodable as error:
            await refuse(context, str(error))

    return make(
        generate if inspect.isasyncgenfunction(method) else run,
        request_deserializer=handler.request_deserializer and partial(_decode, handler.request_deserializer),
        response_serializer=handler.response_serializer,
    )


@contextmanager
def _forgetting() -> Iterator[None]:
    """Let an aborted call's message go: gRPC keeps the error as long as the connection, and its frames with it."""
    try:
        yield
    except grpc.aio.AbortError as error:
        error.__cause__ = error.__context__ = None
        traceback.clear_frames(error.__traceback__)
        raise


def _decode(deserialize: Callable[[bytes], Any], data: bytes) -> Any:
    """The message, or the Undecodable in its stead: gRPC gives nobody the chance to catch what is raised here."""
    try:
        return deserialize(data)
    except DecodeError:
        return Undecodable("The request is no valid protobuf message of this method.")


async def _all(messages: AsyncIterator[Any]) -> AsyncIterator[Any]:
    async for message in messages:
        yield _valid(message)


async def _only(messages: AsyncIterator[Any], seconds: float) -> Any:
    """The first message; more are not looked at, and gRPC's generator, which would keep it, is closed."""
    stream = aiter(messages)
    try:
        with Within(seconds):
            first = await anext(stream, None)
    except asyncio.TimeoutError:
        raise Undecodable(f"The request's message did not come within {seconds:g} s.") from None
    await stream.aclose()  # type: ignore[attr-defined]
    if first is None:
        raise Undecodable("The request ended without a message.")
    return _valid(first)


def _valid(message: Any) -> Any:
    if isinstance(message, Undecodable):
        raise message
    return message

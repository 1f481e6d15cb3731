"""Calls that a server does not welcome end as UNAUTHENTICATED or PERMISSION_DENIED, with no byte of theirs waited for.

grpc.aio.server(interceptors=[RefusingInterceptor(objection), DecodeInterceptor()])
"""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import grpc

from polyfleet.wire.auth import Forbidden, Metadata

Objection = Callable[[str, Metadata | None], str]
Refuse = Callable[[str, Any, str], Awaitable[None]]
_Interceptor: Any = grpc.aio.ServerInterceptor  # typed or not, as the stubs that happen to be installed have it


async def refuse_caller(method: str, context: Any, problem: str) -> None:
    """End the call with PERMISSION_DENIED where its caller is known, else UNAUTHENTICATED; raises, as aborts do."""
    known = isinstance(problem, Forbidden)
    await context.abort(grpc.StatusCode.PERMISSION_DENIED if known else grpc.StatusCode.UNAUTHENTICATED, str(problem))


class RefusingInterceptor(_Interceptor):  # type: ignore[misc]
    """Asks `objection(method, metadata)` of each call of a known method: a sentence refuses it, "" lets it pass.

    `refuse(method, context, sentence)` ends a call that is refused; `method` is its full path.
    """

    def __init__(self, objection: Objection, refuse: Refuse = refuse_caller) -> None:
        self._objection = objection
        self._refuse = refuse

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], call: Any) -> Any:
        """The method's own handler, or one that refuses, which is right for a call of any shape."""
        handler = await continuation(call)
        if handler is None or not (problem := self._objection(call.method, call.invocation_metadata)):
            return handler
        return grpc.stream_stream_rpc_method_handler(partial(self._answer, call.method, problem))

    async def _answer(self, method: str, problem: str, _: Any, context: Any) -> None:
        await self._refuse(method, context, problem)

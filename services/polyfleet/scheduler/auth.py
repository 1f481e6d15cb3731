"""Who may call Fleet: holders of the fleet token, and operators for its writes; without a token, all of loopback."""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import grpc
import msgspec

from polyfleet.wire.auth import Metadata, bearer_in, may_call, same_secret

WRITES = ("/polyfleet.v1.Fleet/Drain", "/polyfleet.v1.Fleet/Deploy", "/polyfleet.v1.Fleet/Undeploy")
_OPEN = "/grpc.health.v1.Health/"
_Interceptor: Any = grpc.aio.ServerInterceptor  # typed or not, as the stubs that happen to be installed have it
log = logging.getLogger(__name__)


class FleetAuth(_Interceptor):  # type: ignore[misc]
    """Refuses calls with UNAUTHENTICATED. Health checks are open: probes carry no metadata.

    `bound` is the address that the server listens on; `keys_file` is the gateway's file of hashed keys, or None.
    """

    def __init__(self, bound: str, token: str | None, keys_file: Path | None = None) -> None:
        self._bound, self._token, self._keys_file = bound, token, keys_file

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], call: Any) -> Any:
        """Let the call pass, or answer it with the refusal."""
        handler = await continuation(call)
        if handler is None or self.allows(call.method, call.invocation_metadata):
            return handler
        return _refusal(handler)

    def allows(self, method: str, metadata: Metadata | None) -> bool:
        """Whether a call of `method` with this metadata is welcome."""
        if method.startswith(_OPEN) or may_call(self._bound, metadata, self._token):
            return True
        return method in WRITES and self._is_operator(bearer_in(metadata))

    def _is_operator(self, secret: str | None) -> bool:
        if not secret or self._keys_file is None:
            return False
        digest = sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()
        return any(same_secret(digest, hashed) for hashed in operator_hashes(self._keys_file))


def operator_hashes(path: Path) -> list[str]:
    """The sha256 of each operator's key in a keys file; none when it can't be read, which is logged."""
    try:
        keys = msgspec.yaml.decode(path.read_bytes())["keys"]
        return [str(key["hash"]) for key in keys if key.get("role") == "operator"]
    except (OSError, msgspec.DecodeError, KeyError, TypeError, AttributeError):
        log.error("The keys file can't be read; operators' keys are refused.", extra={"keys_file": str(path)})
        return []


def _refusal(handler: Any) -> Any:
    """A handler of the same shape that refuses."""

    async def one(_: Any, context: Any) -> None:
        await context.abort(grpc.StatusCode.UNAUTHENTICATED, "Send `authorization: Bearer <fleet token>`.")

    async def many(_: Any, context: Any) -> AsyncIterator[None]:
        await one(_, context)
        yield

    shape = (handler.request_streaming, handler.response_streaming)
    make = {
        (False, False): grpc.unary_unary_rpc_method_handler,
        (False, True): grpc.unary_stream_rpc_method_handler,
        (True, False): grpc.stream_unary_rpc_method_handler,
        (True, True): grpc.stream_stream_rpc_method_handler,
    }[shape]
    return make(
        many if shape[1] else one,
        request_deserializer=handler.request_deserializer,
        response_serializer=handler.response_serializer,
    )

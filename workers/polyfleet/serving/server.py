"""The worker's gRPC server: limits, keepalive, who may call, and health."""

from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from polyfleet.serving.service import WorkerService
from polyfleet.serving.worker import Worker
from polyfleet.v1 import fleet_pb2 as fleet
from polyfleet.v1 import worker_pb2_grpc
from polyfleet.wire.auth import may_call
from polyfleet.wire.decoding import DecodeInterceptor
from polyfleet.wire.limits import GRPC_MAX_MESSAGE_BYTES
from polyfleet.wire.servers import connection_share, raise_descriptor_limit, server_options

SERVICE_NAME = "polyfleet.v1.Worker"
HEALTH_PREFIX = "/grpc.health.v1.Health/"


class BindError(Exception):
    """A port can't be had. The message is one sentence that names it."""


class TokenInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """Refuses calls without the fleet token, health checks apart; a server that has none takes every call."""

    def __init__(self, bound: str, token: str | None) -> None:
        self._bound = bound
        self._token = token

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any) -> Any:
        """The method's own handler, or one that answers UNAUTHENTICATED."""
        handler = await continuation(handler_call_details)
        exempt = handler_call_details.method.startswith(HEALTH_PREFIX)
        if handler is None or exempt or may_call(self._bound, handler_call_details.invocation_metadata, self._token):
            return handler
        return _refusing(handler)


def _refusing(handler: Any) -> Any:
    """A handler of the same kind that refuses at once."""

    async def refuse(_: Any, context: Any) -> None:
        await context.abort(grpc.StatusCode.UNAUTHENTICATED, "This call needs the fleet token.")

    async def refuse_stream(request: Any, context: Any) -> Any:
        await refuse(request, context)
        yield

    arity = ("stream" if handler.request_streaming else "unary", "stream" if handler.response_streaming else "unary")
    make = getattr(grpc, f"{arity[0]}_{arity[1]}_rpc_method_handler")
    return make(refuse_stream if handler.response_streaming else refuse)


class WorkerServer:
    """The bound server; `port` is the real one."""

    def __init__(self, worker: Worker, listen: str, token: str | None) -> None:
        """Bind. Raises BindError."""
        self._worker = worker
        interceptors: Any = [TokenInterceptor(listen, token), DecodeInterceptor()]
        options = server_options(
            max_receive_bytes=GRPC_MAX_MESSAGE_BYTES,
            max_send_bytes=GRPC_MAX_MESSAGE_BYTES,
            min_ping_seconds=5,  # gateways may ping this often
            max_connections=connection_share(raise_descriptor_limit()),
        )
        self._server: Any = grpc.aio.server(options=options, interceptors=interceptors)
        self._health = health.aio.HealthServicer()  # type: ignore[attr-defined]
        worker_pb2_grpc.add_WorkerServicer_to_server(WorkerService(worker), self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        try:
            self.port: int = self._server.add_insecure_port(listen)
        except RuntimeError:
            raise BindError(f"The worker can't listen on {listen}: the port is in use or not ours to take.") from None

    async def start(self) -> None:
        """Take calls; health says NOT_SERVING until a model is ready."""
        await self._set_health()
        await self._server.start()

    async def follow_health(self) -> None:
        """Keep health equal to the worker's state, until cancelled."""
        seen = 0
        while True:
            await self._set_health()
            seen = await self._worker.revision.wait(seen)

    async def stop(self, grace: float) -> None:
        """Say NOT_SERVING, end sessions once what waits in them has been taken, and close within `grace` seconds."""
        await self._health.enter_graceful_shutdown()
        for session in list(self._worker.router.sessions):
            session.close()
        await self._server.stop(grace)

    async def _set_health(self) -> None:
        ready = self._worker.state == fleet.WORKER_STATE_READY
        alive = not self._worker.failed
        await self._health.set("", _serving(ready))
        await self._health.set(SERVICE_NAME, _serving(ready))
        await self._health.set("liveness", _serving(alive))  # one that drains, loads or is suspended lives


def _serving(value: bool) -> int:
    status = health_pb2.HealthCheckResponse
    return int(status.SERVING if value else status.NOT_SERVING)

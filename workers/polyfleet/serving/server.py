"""The worker's gRPC server: limits, keepalive, who may call, and health."""

from functools import partial
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from polyfleet.process.channels import FleetAccess
from polyfleet.process.decoding import DecodeInterceptor
from polyfleet.process.fleet_keys import FleetKeys
from polyfleet.process.listening import ListenError, check_free
from polyfleet.process.refusing import RefusingInterceptor
from polyfleet.process.servers import connection_share, raise_descriptor_limit, server_options
from polyfleet.serving.service import WorkerService
from polyfleet.serving.worker import Worker
from polyfleet.v1 import fleet_pb2 as fleet
from polyfleet.v1 import worker_pb2_grpc
from polyfleet.wire.auth import fleet_objection
from polyfleet.wire.limits import GRPC_MAX_MESSAGE_BYTES, MAX_COMMAND_BYTES

SERVICE_NAME = "polyfleet.v1.Worker"
LISTEN = "--listen"


class WorkerServer:
    """The bound server; `port` is the real one."""

    def __init__(self, worker: Worker, listen: str, access: FleetAccess, keys: FleetKeys | None = None) -> None:
        """Bind. Callers show a key of `keys`, or where there are none the token, and a certificate where there is one.

        Raises ListenError.
        """
        self._worker, tls = worker, access.tls
        objection = keys.objection if keys else partial(fleet_objection, listen, access.token)
        interceptors: Any = [RefusingInterceptor(objection), DecodeInterceptor(admit=tls.admit if tls else None)]
        options = server_options(
            max_receive_bytes=MAX_COMMAND_BYTES,
            max_send_bytes=GRPC_MAX_MESSAGE_BYTES,
            min_ping_seconds=5,  # gateways may ping this often
            max_connections=connection_share(raise_descriptor_limit()),
        )
        self._server: Any = grpc.aio.server(options=options, interceptors=interceptors)
        self._health = health.aio.HealthServicer()  # type: ignore[attr-defined]
        worker_pb2_grpc.add_WorkerServicer_to_server(WorkerService(worker), self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        check_free(listen, LISTEN)  # gRPC itself does not say why it can't bind
        try:
            if tls:
                self.port = int(self._server.add_secure_port(listen, tls.server_credentials()))
            else:
                self.port = int(self._server.add_insecure_port(listen))
        except RuntimeError:
            raise ListenError(listen, LISTEN) from None

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

"""The gRPC port: Inference, agents, health, reflection; message sizes, keepalive, TLS."""

import asyncio
import ssl
from functools import partial
from typing import Any

from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from polyfleet.gateway.agents.relay import AgentRelay
from polyfleet.gateway.agents.service import AGENTS, AgentsService, agent_objection
from polyfleet.gateway.auth import Authenticator
from polyfleet.gateway.config import GatewayConfig, Limits
from polyfleet.gateway.errors import ApiError
from polyfleet.gateway.grpc.http2.server import Bounds, Http2Server
from polyfleet.gateway.grpc.reflection import add_reflection
from polyfleet.gateway.grpc.service import INFERENCE, InferenceService
from polyfleet.gateway.parts import GatewayParts
from polyfleet.gateway.ports.certificate import ServedCertificate
from polyfleet.gateway.ports.doors import Doors
from polyfleet.gateway.ports.taking import Source, opened
from polyfleet.process.decoding import DecodeInterceptor
from polyfleet.process.refusing import Objection, RefusingInterceptor
from polyfleet.process.servers import MAX_METADATA_BYTES, MAX_STREAMS
from polyfleet.v1 import agents_pb2_grpc, inference_pb2_grpc
from polyfleet.wire.auth import AUTHORIZATION, Metadata

MAX_CONNECTION_AGE_SECONDS = 3600


def bounds(limits: Limits) -> Bounds:
    """A connection that is too old gets GOAWAY, and its streams the longest request's time."""
    return Bounds(
        max_streams=MAX_STREAMS,
        max_message_bytes=limits.max_message_bytes,
        max_header_bytes=MAX_METADATA_BYTES,
        handshake=limits.header_seconds,
        idle=limits.idle_seconds,
        age=MAX_CONNECTION_AGE_SECONDS,
        age_grace=limits.max_request_seconds,
    )


def key_objection(auth: Authenticator, method: str, metadata: Metadata | None) -> str:
    """Why a call is refused: it is one of Inference without a valid key."""
    if not method.startswith(f"/{INFERENCE}/"):
        return ""
    try:
        auth.check(dict(metadata or ()).get(AUTHORIZATION))
    except ApiError as error:  # of no key, or of one that calls no models
        return str(error)
    return ""


class GrpcServer:
    """Binds when made, but where `source` gives connections: raises ListenError when the port can't be had.

    `agents` objects to calls of theirs.
    """

    def __init__(
        self,
        parts: GatewayParts,
        config: GatewayConfig,
        *,
        certificate: ServedCertificate | None,
        max_connections: int,
        relay: AgentRelay,
        agents: Objection,
        source: Source | None = None,
    ) -> None:
        self._parts = parts
        limits = config.limits
        service = InferenceService(parts)
        without_key = RefusingInterceptor(partial(key_objection, parts.auth), service.refuse)  # which counts the call
        source, self.port = opened(config.grpc_listen, "--grpc-listen", source)
        doors = Doors(max_connections, limits.max_connections_per_address, partial(parts.metrics.refused, "grpc"))
        interceptors = [
            without_key,
            RefusingInterceptor(partial(agent_objection, agents)),
            DecodeInterceptor(service.refuse, limits.body_seconds, self._let_in),
        ]
        tls = _tls(certificate) if certificate else None
        self.connections = self._server = Http2Server(source, doors, bounds(limits), interceptors, tls, parts.begins)
        hosts = AgentsService(relay, lambda: parts.health.draining)
        agents_pb2_grpc.add_AgentsServicer_to_server(hosts, self._server)
        inference_pb2_grpc.add_InferenceServicer_to_server(service, self._server)
        self._health = health.aio.HealthServicer()  # type: ignore[attr-defined]
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        self._serving: bool | None = None
        add_reflection(self._server, (INFERENCE, health.SERVICE_NAME))
        self._leaving: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Take calls."""
        await self.show_health()
        await self._server.start()

    async def _let_in(self, method: str, context: Any) -> None:
        """A call that asked for a key or token has shown it."""
        if method.startswith((f"/{INFERENCE}/", f"/{AGENTS}/")):
            self.connections.heard(context.peer())

    async def show_health(self) -> None:
        """Tell the health service what `parts.health` says now."""
        serving = self._parts.health.serving
        if serving is self._serving:
            return
        self._serving = serving
        status = health_pb2.HealthCheckResponse.SERVING if serving else health_pb2.HealthCheckResponse.NOT_SERVING
        for name in ("", INFERENCE):
            await self._health.set(name, status)

    def leave(self, seconds: float) -> None:
        """Take no connections, let callers make new ones elsewhere; calls that run get so many seconds."""
        self._leaving = asyncio.create_task(self._server.stop(seconds))

    async def stop(self, grace: float) -> None:
        """Take no calls; those that run get `grace` seconds."""
        await self._server.stop(grace)
        if self._leaving is not None:
            await self._leaving


def _tls(certificate: ServedCertificate) -> ssl.SSLContext:
    """With the newest certificate, for HTTP/2."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_alpn_protocols(["h2"])
    certificate.use_in(context)
    return context

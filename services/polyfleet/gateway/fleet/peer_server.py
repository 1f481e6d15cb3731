"""The port at which other gateways ask: a part of `Fleet`, for gateways of this fleet alone."""

from typing import Any

import grpc

from polyfleet.gateway.fleet.peers import PeerService
from polyfleet.process.channels import FleetAccess
from polyfleet.process.decoding import DecodeInterceptor
from polyfleet.process.fleet_keys import FleetKeys
from polyfleet.process.listening import ListenError, check_free
from polyfleet.process.refusing import RefusingInterceptor
from polyfleet.process.servers import server_options
from polyfleet.v1 import fleet_pb2_grpc
from polyfleet.wire.auth import Metadata, check_bind, fleet_objection
from polyfleet.wire.limits import GRPC_MAX_MESSAGE_BYTES, MAX_SNAPSHOT_BYTES

FLAG = "--peer-listen"
MAX_CONNECTIONS = 64
CLOSE_SECONDS = 1.0


class PeerServer:
    """Binds when made: raises ListenError when the port can't be had, AuthSetupError where anybody could ask."""

    def __init__(
        self, service: PeerService, listen: str, access: FleetAccess, keys: FleetKeys | None, *, shared: bool = False
    ) -> None:
        """`keys` are those of the fleet's parts; without them a call is welcome for the token of `access`.

        `shared`: other processes listen there, too.
        """
        check_bind(listen, access.token, keys=keys is not None)
        if not shared:
            check_free(listen, FLAG)

        def objection(method: str, metadata: Metadata | None) -> str:
            return keys.objection(method, metadata) if keys else fleet_objection(listen, access.token, method, metadata)

        admit = access.tls.admit if access.tls else None
        self._server: Any = grpc.aio.server(
            options=server_options(
                max_receive_bytes=GRPC_MAX_MESSAGE_BYTES,
                max_send_bytes=MAX_SNAPSHOT_BYTES,
                min_ping_seconds=10,
                max_connections=MAX_CONNECTIONS,
                shared_port=shared,
            ),
            interceptors=[RefusingInterceptor(objection), DecodeInterceptor(admit=admit)],
        )
        fleet_pb2_grpc.add_FleetServicer_to_server(service, self._server)
        try:
            if access.tls:
                self.port = int(self._server.add_secure_port(listen, access.tls.server_credentials()))
            else:
                self.port = int(self._server.add_insecure_port(listen))
        except RuntimeError:
            raise ListenError(listen, FLAG) from None

    async def start(self) -> None:
        """Take calls."""
        await self._server.start()

    async def stop(self) -> None:
        """Take none."""
        await self._server.stop(CLOSE_SECONDS)

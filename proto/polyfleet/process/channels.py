"""Channels between the processes of one fleet, and what a process shows the others."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc

from polyfleet.process.keys import Role
from polyfleet.wire.auth import AuthSetupError, bearer_metadata, fleet_token

if TYPE_CHECKING:
    from polyfleet.process.fleet_tls import FleetTls

FLEET_CHANNEL = (
    ("grpc.enable_http_proxy", 0),  # a proxy is for the world outside the fleet
    ("grpc.use_local_subchannel_pool", 1),  # each dial is a new one, which inherits no older channel's back-off
)
"""gRPC's arguments that all of them have."""
FLEET_TLS_DIR = "POLYFLEET_FLEET_TLS_DIR"
log = logging.getLogger(__name__)
Arguments = Iterable[tuple[str, Any]]


@dataclass(frozen=True)
class FleetAccess:
    """What a process shows the fleet's others when it calls them: a token or key, and a certificate where they ask."""

    token: str | None = None
    tls: FleetTls | None = None
    token_file: str | Path | None = None
    _told: set[str] = field(default_factory=set, init=False, repr=False, compare=False)  # what is wrong with the file

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Of each call."""
        return bearer_metadata(self.token)

    def current_metadata(self) -> tuple[tuple[str, str], ...]:
        """By what the token's file says now, since a key may be changed while this process runs; that which it
        began with where the file can't be read."""
        try:
            found = bearer_metadata(fleet_token(self.token_file))
        except AuthSetupError as error:
            if str(error) not in self._told:
                log.warning("%s", error)
            self._told.add(str(error))
            return self.metadata
        self._told.clear()
        return found

    def channel(self, address: str, role: Role, options: Arguments = FLEET_CHANNEL) -> Any:
        """To a part of this role, for asyncio."""
        if self.tls is None:
            return grpc.aio.insecure_channel(address, options=tuple(options))
        named = (*options, *self.tls.channel_options(role))
        return grpc.aio.secure_channel(address, self.tls.channel_credentials(), options=named)

    def dialled(self, role: Role) -> dict[str, Any]:
        """What asyncio's `create_connection` wants for a part of this role. Raises ssl.SSLError while files change."""
        if self.tls is None:
            return {}
        return {"ssl": self.tls.dialling_context(), "server_hostname": self.tls.name_of(role)}

    def blocking_channel(self, address: str, role: Role) -> grpc.Channel:
        """The same for threads."""
        if self.tls is None:
            return grpc.insecure_channel(address, FLEET_CHANNEL)
        named = (*FLEET_CHANNEL, *self.tls.channel_options(role))
        return grpc.secure_channel(address, self.tls.channel_credentials(), named)


def fleet_tls(folder: str | Path | None) -> FleetTls | None:
    """The certificates in a folder; None without one. Raises ConfigError."""
    if not folder:
        return None
    from polyfleet.process.fleet_tls import FleetTls  # cryptography is for those that use it

    return FleetTls(folder)


def fleet_access(token_file: str | Path | None, tls_dir: str | Path | None) -> FleetAccess:
    """As these say, each of which may be absent. Raises AuthSetupError and ConfigError."""
    return FleetAccess(fleet_token(token_file or None), fleet_tls(tls_dir), token_file or None)

"""How the client reaches a gateway: channel options and TLS."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import grpc

from polyfleet.wire.auth import is_loopback
from polyfleet.wire.limits import GRPC_MAX_MESSAGE_BYTES

FIRST_REDIAL_MS = 100  # gRPC's own second outlasts all our retries, which fail at once meanwhile


@dataclass(frozen=True, slots=True)
class Tls:
    """Files in PEM. Without `ca_file` gRPC's own roots count; certificate and key together make it mutual TLS.

    `server_name` is the name to expect in the gateway's certificate when the address is another.
    """

    ca_file: str | Path | None = None
    certificate_file: str | Path | None = None
    key_file: str | Path | None = None
    server_name: str = ""

    def credentials(self) -> grpc.ChannelCredentials:
        """Read the files; raises OSError when one can't be read."""
        return grpc.ssl_channel_credentials(_read(self.ca_file), _read(self.key_file), _read(self.certificate_file))


def tls_settings(tls: Tls | bool) -> Tls | None:
    """True means TLS with all defaults, False none."""
    return tls if isinstance(tls, Tls) else Tls() if tls else None


def channel_options(address: str, tls: Tls | None) -> list[tuple[str, int | str]]:
    """Explicit message limits, no retries but our own, and no proxy between this host and itself."""
    options: list[tuple[str, int | str]] = [
        ("grpc.max_send_message_length", GRPC_MAX_MESSAGE_BYTES),
        ("grpc.max_receive_message_length", GRPC_MAX_MESSAGE_BYTES),
        ("grpc.enable_retries", 0),
        ("grpc.initial_reconnect_backoff_ms", FIRST_REDIAL_MS),
    ]
    if is_loopback(address):
        options.append(("grpc.enable_http_proxy", 0))
    if tls and tls.server_name:
        options.append(("grpc.ssl_target_name_override", tls.server_name))
    return options


def _read(path: str | Path | None) -> bytes | None:
    return None if path is None else Path(path).read_bytes()

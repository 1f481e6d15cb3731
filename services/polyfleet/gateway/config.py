"""The gateway's configuration: its section of the one YAML file. Flags override it."""

from pathlib import Path

import msgspec

from polyfleet.wire.limits import GRPC_MAX_MESSAGE_BYTES


class ConfigError(ValueError):
    """The configuration can't be used. One sentence that names file and field."""


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What bounds a gateway's memory and patience."""

    max_message_bytes: int = GRPC_MAX_MESSAGE_BYTES  # of one request, gRPC message or HTTP body
    max_concurrent: int = 1024  # requests with a worker at once
    max_queued: int = 1024  # requests that wait for one
    queue_timeout: float = 30.0  # seconds a request waits for a worker before UNAVAILABLE
    max_request_seconds: float = 3600.0  # the longest that any request may take
    max_moves: int = 3  # times that one sequence may move to another worker
    max_pending_tokens: int = 2048  # tokens held for a client that does not read; beyond, its sequence is parked
    drain_seconds: float = 60.0  # time that running requests get after SIGTERM


class GatewayConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Section `gateway` of the configuration file."""

    grpc_listen: str = "127.0.0.1:50051"
    http_listen: str = "127.0.0.1:8000"
    fleet: str = "127.0.0.1:50052"  # host:port of the scheduler's Fleet service
    fleet_token_file: str = ""
    keys_file: str = ""
    insecure_no_keys: bool = False
    tls_cert: str = ""  # PEM chain for both ports
    tls_key: str = ""
    log_level: str = "info"
    limits: Limits = Limits()


class ConfigFile(msgspec.Struct, frozen=True):
    """The whole file; the other processes' sections are theirs."""

    gateway: GatewayConfig = GatewayConfig()


def load_config(path: Path | None) -> GatewayConfig:
    """The gateway's section of `path`, or the defaults. Raises ConfigError."""
    if path is None:
        return GatewayConfig()
    try:
        document = path.read_bytes()
        return msgspec.yaml.decode(document, type=ConfigFile).gateway if document.strip() else GatewayConfig()
    except OSError as error:
        raise ConfigError(f"The configuration {path} can't be read: {error.strerror}.") from None
    except msgspec.DecodeError as error:
        raise ConfigError(f"The configuration {path} is not valid: {error}.") from None

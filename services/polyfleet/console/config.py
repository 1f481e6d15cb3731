"""The console's configuration: its section of the one YAML file. Flags override it."""

import re
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from polyfleet.process.config import ConfigError
from polyfleet.process.config_file import overlaid, read_config

WEB_ADDRESS = re.compile(r"https?://[^\s\"'<>]{1,500}")
ROOT_PATH = re.compile(r"(/[A-Za-z0-9._~-]+)*")


class ConsoleConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Section `console` of the configuration file."""

    listen: Annotated[str, Meta(description="host:port of the pages")] = "127.0.0.1:8080"
    fleet: Annotated[str, Meta(description="host:port of the scheduler's Fleet service")] = "127.0.0.1:50052"
    fleet_token_file: Annotated[
        str, Meta(description="first line: the fleet's token, or an operator's key, by which the console looks at it")
    ] = ""
    fleet_tls_dir: Annotated[
        str,
        Meta(description="folder with tls.crt, tls.key, ca.crt, of role operator; for a fleet whose parts speak TLS"),
    ] = ""
    gateway: Annotated[str, Meta(description="host:port of the gateway's gRPC API, for chats")] = "127.0.0.1:50051"
    gateway_tls: Annotated[bool, Meta(description="speak TLS to the gateway")] = False
    gateway_ca: Annotated[str, Meta(description="PEM roots that its certificate must come from; empty: the usual")] = ""
    keys_file: Annotated[
        str, Meta(description="YAML file with the callers' keys, as the gateway has it; empty: none")
    ] = ""
    insecure_no_keys: Annotated[bool, Meta(description="allow visitors without keys beyond loopback")] = False
    tls_cert: Annotated[str, Meta(description="PEM certificate chain of the pages")] = ""
    tls_key: Annotated[str, Meta(description="PEM private key of tls_cert")] = ""
    prometheus_url: Annotated[
        str, Meta(description="of a Prometheus with the fleet's metrics: which alerts fire, the last hour's lines")
    ] = ""
    grafana_url: Annotated[str, Meta(description="of a Grafana with the dashboards, to link to")] = ""
    runbooks_url: Annotated[
        str, Meta(description="where this project's folder docs lies, to link alerts' runbooks to; empty: their names")
    ] = ""
    root_path: Annotated[str, Meta(description="path prefix that a proxy serves it under, as /polyfleet")] = ""
    session_seconds: Annotated[int, Meta(ge=60, le=604_800, description="without a visit until one is signed out")] = (
        43_200
    )
    log_level: Literal["debug", "info", "warning", "error"] = "info"


class ConfigFile(msgspec.Struct, frozen=True):
    """The whole file; the other processes' sections are theirs."""

    console: ConsoleConfig = ConsoleConfig()


def load_config(path: Path | None, overrides: dict[str, Any] | None = None) -> ConsoleConfig:
    """The console's section of `path` (None: the defaults), with `overrides` that are not None. Raises ConfigError."""
    config = read_config(path, ConfigFile).console if path else ConsoleConfig()
    config = overlaid(config, **(overrides or {}))
    if bool(config.tls_cert) != bool(config.tls_key):
        raise ConfigError("TLS needs both --tls-cert and --tls-key.")
    if not ROOT_PATH.fullmatch(config.root_path):
        raise ConfigError(f"root_path: must be empty or like /polyfleet, not {config.root_path!r:.80}.")
    for name in ("prometheus_url", "grafana_url", "runbooks_url"):
        if (address := getattr(config, name)) and not WEB_ADDRESS.fullmatch(address):
            raise ConfigError(f"{name}: must be empty or like http://prometheus:9090, not {address!r:.80}.")
    return config

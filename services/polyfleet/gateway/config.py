"""The gateway's configuration: its section of the one YAML file. Flags override it."""

import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from polyfleet.gateway.fetching.hosts import ImageHost
from polyfleet.placement.policy import Policy
from polyfleet.process.config import ConfigError
from polyfleet.process.config_file import overlaid, read_config
from polyfleet.wire.limits import GRPC_MAX_MESSAGE_BYTES

ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://([a-z0-9.-]+|\[[0-9a-f:]+\])(:[0-9]+)?")  # as browsers send it
Positive = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Seconds = Annotated[float, Meta(ge=0, le=86_400)]
Patience = Annotated[float, Meta(gt=0, le=86_400)]


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What bounds a gateway's memory and patience."""

    max_message_bytes: Annotated[Positive, Meta(description="of one request: gRPC message or HTTP body")] = (
        GRPC_MAX_MESSAGE_BYTES
    )
    max_concurrent: Annotated[Positive, Meta(description="requests that have a worker at once")] = 1024
    max_queued: Annotated[int, Meta(ge=0, description="requests that wait for one")] = 1024
    queue_timeout: Annotated[Seconds, Meta(description="seconds to wait for a worker before UNAVAILABLE")] = 30.0
    cold_start_timeout: Annotated[
        Seconds, Meta(description="the same where no worker of the model runs until somebody asks for it")
    ] = 900.0
    max_request_seconds: Annotated[Seconds, Meta(description="the longest that any request may take")] = 3600.0
    max_moves: Annotated[
        int, Meta(ge=0, description="times that a sequence may move off workers that fail, before ABORTED")
    ] = 3
    max_pending_tokens: Annotated[Positive, Meta(description="held for a client that does not read")] = 2048
    drain_seconds: Annotated[Seconds, Meta(description="for running requests after SIGTERM")] = 60.0
    max_connections: Annotated[Positive, Meta(description="open at once, of each port")] = 4096
    max_connections_per_address: Annotated[Positive, Meta(description="of them from one address")] = 2048
    max_header_bytes: Annotated[Positive, Meta(description="of one HTTP request: its line and headers")] = 65_536
    max_headers: Annotated[Positive, Meta(description="of one HTTP request")] = 128
    header_seconds: Annotated[Patience, Meta(description="from connecting to a request's last header")] = 10.0
    body_seconds: Annotated[Patience, Meta(description="from the last header to the end of body or message")] = 60.0
    idle_seconds: Annotated[Patience, Meta(description="a connection may stay open without a request")] = 300.0
    comment_seconds: Annotated[Patience, Meta(description="without news, behind which a stream gets a comment")] = 10.0
    max_image_bytes: Annotated[Positive, Meta(description="of an image that is fetched by its URL")] = 16 * 1024 * 1024
    image_seconds: Annotated[Patience, Meta(description="to fetch an image by its URL")] = 10.0
    stall_seconds: Annotated[Patience, Meta(description="an HTTP client may take nothing of its answer")] = 300.0


class Objectives(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a good answer keeps. The defaults are those of MLPerf Inference 4.0, Llama 2 70B, scenario server."""

    time_to_first_token: Annotated[Seconds, Meta(description="seconds from arrival to the first token")] = 2.0
    time_per_output_token: Annotated[Seconds, Meta(description="mean seconds between a request's tokens")] = 0.2


class GatewayConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Section `gateway` of the configuration file."""

    grpc_listen: Annotated[str, Meta(description="host:port of the gRPC API")] = "127.0.0.1:50051"
    http_listen: Annotated[str, Meta(description="host:port of the OpenAI-compatible API")] = "127.0.0.1:8000"
    metrics_listen: Annotated[str, Meta(description="host:port of /metrics, which asks for no key")] = "127.0.0.1:9101"
    processes: Annotated[
        int, Meta(ge=1, le=64, description="that serve side by side behind the two ports; limits are each one's")
    ] = 1
    fleet: Annotated[str, Meta(description="host:port of the scheduler's Fleet service")] = "127.0.0.1:50052"
    fleet_token_file: Annotated[str, Meta(description="first line: the token that Fleet and workers ask for")] = ""
    fleet_keys_file: Annotated[
        str, Meta(description="hashes of the keys that the fleet's parts show; empty: they show the fleet token")
    ] = ""
    fleet_tls_dir: Annotated[
        str,
        Meta(description="folder with tls.crt, tls.key, ca.crt, of role gateway; for a fleet whose parts speak TLS"),
    ] = ""
    peers: Annotated[
        tuple[str, ...],
        Meta(description="host:port of other gateways' peer_listen, asked while the scheduler is away"),
    ] = ()
    peer_listen: Annotated[str, Meta(description="host:port at which other gateways ask; empty: none can")] = ""
    keys_file: Annotated[str, Meta(description="YAML file with the callers' keys; empty: none are asked for")] = ""
    insecure_no_keys: Annotated[bool, Meta(description="allow callers without keys beyond loopback")] = False
    tls_cert: Annotated[str, Meta(description="PEM certificate chain, for gRPC and the OpenAI API")] = ""
    tls_key: Annotated[str, Meta(description="PEM private key of tls_cert")] = ""
    cors_origins: Annotated[
        tuple[str, ...], Meta(description="whose pages may call the HTTP API, as https://app.example; * is anybody's")
    ] = ()
    image_hosts: Annotated[
        tuple[str, ...],
        Meta(
            description="whence images are fetched by their URLs: images.example.com, *.example.com, "
            "http://minio:9000=10.0.0.0/8 (which may have addresses in that network); none: none are fetched"
        ),
    ] = ()
    allow_special_tokens_in_content: Annotated[
        bool, Meta(description="what a chat's contents spell may become control tokens, as in a raw text")
    ] = False
    tool_parser: Annotated[
        Literal[
            "auto",
            "none",
            "harmony",
            "deepseek",
            "kimi",
            "mistral",
            "phi",
            "minicpm",
            "seed",
            "hunyuan",
            "olmo",
            "nemotron",
            "minitron",
            "internlm",
            "hermes",
            "pythonic",
            "llama",
            "glm4",
        ],
        Meta(
            description="how models write calls of tools; auto: as each one's chat template shows; none: calls are text"
        ),
    ] = "auto"
    generation_config: Annotated[
        Literal["auto", "none"],
        Meta(description="auto: a model's own sampling defaults hold for what requests leave out; none: they don't"),
    ] = "auto"
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    limits: Limits = Limits()
    objectives: Objectives = Objectives()
    placement: Policy = Policy()


class ConfigFile(msgspec.Struct, frozen=True):
    """The whole file; the other processes' sections are theirs."""

    gateway: GatewayConfig = GatewayConfig()


def load_config(path: Path | None, overrides: dict[str, Any] | None = None) -> GatewayConfig:
    """The gateway's section of `path` (None: the defaults), with `overrides` that are not None. Raises ConfigError."""
    config = read_config(path, ConfigFile).gateway if path else GatewayConfig()
    given = dict(overrides or {})
    given["placement"] = with_flags(config.placement, given.get("placement", ()))
    config = overlaid(config, **given)
    if bool(config.tls_cert) != bool(config.tls_key):
        raise ConfigError("TLS needs both --tls-cert and --tls-key.")
    for origin in config.cors_origins:
        if origin != "*" and not ORIGIN.fullmatch(origin):
            raise ConfigError(
                f"cors_origins: must be * or like https://app.example or http://127.0.0.1:3000, not {origin!r}."
            )
    for entry in config.image_hosts:
        try:
            ImageHost.of(entry)
        except ValueError as error:
            raise ConfigError(f"image_hosts: {error}, not {entry!r}.") from None
    return config


def with_flags(policy: Policy, flags: Iterable[str]) -> Policy:
    """The policy with what `--placement NAME=VALUE` says, the last of several. Raises ConfigError."""
    given: dict[str, Any] = dict(flag.partition("=")[::2] for flag in flags)
    for name, text in given.items():
        with suppress(msgspec.DecodeError):
            given[name] = msgspec.json.decode(text) if text.startswith("{") else text
    try:
        return msgspec.convert(msgspec.to_builtins(policy) | given, Policy, strict=False)
    except msgspec.ValidationError as error:
        problem = str(error).replace("$.", "").replace("Object contains unknown field", "There is no")
        raise ConfigError(f"--placement takes one of {', '.join(Policy.__struct_fields__)}: {problem}.") from None

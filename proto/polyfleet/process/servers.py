"""What every gRPC server of a fleet bounds, and its share of the process's file descriptors."""

import resource
from contextlib import suppress

MAX_METADATA_BYTES = 16 * 1024  # of one call; a larger one ends with RESOURCE_EXHAUSTED
HANDSHAKE_SECONDS = 10  # TCP accepted to HTTP/2's first settings, TLS included
MAX_CONNECTIONS = 4096
MAX_STREAMS = 1024  # of one connection; a client keeps further calls back
IDLE_SECONDS = 300  # without a call
MACOS_DESCRIPTORS = 10_240  # its kernel takes no more, whatever the hard limit says


def server_options(
    *,
    max_receive_bytes: int,
    max_send_bytes: int,
    min_ping_seconds: int,
    max_connections: int = MAX_CONNECTIONS,
    max_streams: int = MAX_STREAMS,
    handshake_seconds: float = HANDSHAKE_SECONDS,
    idle_seconds: float = IDLE_SECONDS,
    shared_port: bool = False,
) -> list[tuple[str, int]]:
    """Channel arguments of a server that no caller can fill: sizes in bytes, times in seconds.

    A connection beyond `max_connections` is closed at once, one without a call for `idle_seconds` gets GOAWAY, one
    that pings more often than each `min_ping_seconds` too; a peer that is gone is noticed within 50 s.
    """
    return [
        ("grpc.so_reuseport", int(shared_port)),  # a port in use must be an error, unless its processes share it
        ("grpc.max_receive_message_length", max_receive_bytes),
        ("grpc.max_send_message_length", max_send_bytes),
        ("grpc.max_metadata_size", MAX_METADATA_BYTES),
        ("grpc.absolute_max_metadata_size", MAX_METADATA_BYTES),
        ("grpc.max_allowed_incoming_connections", max_connections),
        ("grpc.max_concurrent_streams", max_streams),
        ("grpc.server_handshake_timeout_ms", max(1, int(handshake_seconds * 1000))),
        ("grpc.max_connection_idle_ms", max(1, int(idle_seconds * 1000))),
        ("grpc.keepalive_time_ms", 30_000),
        ("grpc.keepalive_timeout_ms", 20_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", min_ping_seconds * 1000),
        ("grpc.http2.max_ping_strikes", 2),
    ]


def raise_descriptor_limit() -> int:
    """Let this process open as many files as it may; how many that is."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for wanted in (hard, MACOS_DESCRIPTORS):
        if 0 <= soft < wanted or wanted == resource.RLIM_INFINITY:
            with suppress(ValueError, OSError):
                resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
                break
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return 2**31 - 1 if soft == resource.RLIM_INFINITY else soft


def connection_share(descriptors: int, wanted: int = MAX_CONNECTIONS, ports: int = 1) -> int:
    """How many connections each of `ports` ports may hold: up to `wanted`, while an eighth of all stays free.

    At least 64 descriptors stay free for files, sessions and health checks, where there are that many.
    """
    reserve = min(max(64, descriptors // 8), descriptors // 2)
    return max(1, min(wanted, (descriptors - reserve) // ports))

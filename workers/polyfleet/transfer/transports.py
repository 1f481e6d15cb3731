"""Transports: ways from worker to worker. The first that leads to a peer is taken.

A transport connects a Channel; frames on it are the same everywhere. One that is `shared` carries descriptors of memory
beside them, into which the serving side writes: so payloads of one host are copied once. A library for RDMA (NIXL,
Mooncake) is one more Transport, whose Channel gives `SharedSlots`' place to memory that it has registered.
"""

import socket
from collections.abc import Sequence
from typing import Protocol

from polyfleet.transfer import memory
from polyfleet.transfer.channel import Channel
from polyfleet.transfer.settings import Certificates
from polyfleet.wire.auth import split_host_port
from polyfleet.wire.tickets import PrefixSource

BUFFER_BYTES = 4 << 20  # of a TCP socket


class Transport(Protocol):
    """One way."""

    name: str

    def connect(self, source: PrefixSource, seconds: float, certificates: Certificates | None) -> Channel | None:
        """To a peer; None where this way does not lead there. Raises OSError where it does, and yet fails."""
        ...


class LocalTransport:
    """A Unix socket with a name in the abstract namespace, which a container's network has of its own, and memory."""

    name = "shared memory"

    def connect(self, source: PrefixSource, seconds: float, certificates: Certificates | None) -> Channel | None:
        """Names are random, so whoever has this one is on this host."""
        if not source.local or not memory.available():
            return None
        end = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            end.settimeout(seconds)
            end.connect(f"\0{source.local}")
        except OSError:
            end.close()
            return None
        return Channel(end, shared=True)


class TcpTransport:
    """A TCP connection, over TLS where the fleet has certificates."""

    name = "tcp"

    def connect(self, source: PrefixSource, seconds: float, certificates: Certificates | None) -> Channel | None:
        """Wherever it is."""
        host, port = split_host_port(source.address)
        end = socket.create_connection((host, int(port or 0)), seconds)
        try:
            tune(end)
            return Channel(certificates.wrap(end, server=False) if certificates else end)
        except BaseException:
            end.close()
            raise


TRANSPORTS: tuple[Transport, ...] = (LocalTransport(), TcpTransport())


def connect(
    source: PrefixSource,
    seconds: float,
    certificates: Certificates | None = None,
    transports: Sequence[Transport] = TRANSPORTS,
) -> Channel:
    """By the first transport that leads there. Raises OSError."""
    for transport in transports:
        channel = transport.connect(source, seconds, certificates)
        if channel is not None:
            return channel
    raise OSError(f"no transport leads to {source.address}")


def tune(end: socket.socket) -> None:
    """Large buffers, and no waiting for more to send."""
    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        end.setsockopt(socket.SOL_SOCKET, option, BUFFER_BYTES)

"""The gRPC port's connections, which gRPC counts and bounds but does not show: found among the process's descriptors.

gRPC takes no more connections once the port is full, whoever holds them. So that those who only hold their place
keep nobody out, the ones over which no call was let in yet are closed, oldest first, when places get scarce.
"""

import asyncio
import ipaddress
import os
import socket
import stat
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from typing import NamedTuple
from urllib.parse import unquote

from polyfleet.wire.auth import split_host_port

LOOK_SECONDS = 1.0
DESCRIPTORS = "/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd"


class Peer(NamedTuple):
    """The far end of a connection."""

    address: str
    port: int


class GrpcConnections:
    """Watches `port`. An eighth of `most` stays free, and no address has more than `most_per_address`, if closing
    connections without a call is enough for that; `refused` is told why one is closed.
    """

    def __init__(self, port: int, most: int, most_per_address: int, refused: Callable[[str], None]) -> None:
        self._port = port
        self._most = most - most // 8
        self._most_per_address = most_per_address
        self._refused = refused
        self._open: dict[Peer, None] = {}  # as of the last look, oldest first
        self._heard: set[Peer] = set()

    def __len__(self) -> int:
        """How many were open at the last look."""
        return len(self._open)

    def heard(self, peer: str) -> None:
        """A call was let in from there; `peer` as gRPC writes it."""
        with suppress(ValueError):
            self._heard.add(peer_of(peer))

    async def watch(self) -> None:
        """Look every second, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self._look(await asyncio.to_thread(lambda: dict(connections_of(self._port))))

    def _look(self, found: dict[Peer, int]) -> None:
        kept = [peer for peer in self._open if peer in found]
        self._open = dict.fromkeys([*kept, *found])
        self._heard &= self._open.keys()
        for peer, reason in surplus(list(self._open), self._heard, self._most, self._most_per_address):
            self._refused(reason)
            shut_down(found[peer], peer)


def surplus(
    peers: Collection[Peer], heard: Collection[Peer], most: int, most_per_address: int
) -> Iterator[tuple[Peer, str]]:
    """Which of `peers`, oldest first, have to go, and why. Never one that was heard."""
    by_address, total = Counter(peer.address for peer in peers), len(peers)
    for peer in peers:
        over = "address_full" if by_address[peer.address] > most_per_address else "full" if total > most else ""
        if over and peer not in heard:
            by_address[peer.address] -= 1
            total -= 1
            yield peer, over


def peer_of(text: str) -> Peer:
    """gRPC's `ipv4:host:port` or `ipv6:[host]:port`, which may be percent-encoded. Raises ValueError."""
    host, port = split_host_port(unquote(text).partition(":")[2])
    return Peer(_plain(host), int(port))


def connections_of(port: int) -> Iterator[tuple[Peer, int]]:
    """This process's connections that came in at `port`, with their descriptors. Opens none: they may be scarce."""
    for name in os.listdir(DESCRIPTORS):
        with suppress(OSError, ValueError):  # closed meanwhile, no socket, not connected, or not TCP
            number = int(name)
            if stat.S_ISSOCK(os.fstat(number).st_mode):
                here, peer = _ends(number)
                if here == port:
                    yield peer, number


def shut_down(number: int, peer: Peer) -> None:
    """End the connection that `number` is, if it still leads to `peer`."""
    with suppress(OSError, ValueError), socket.socket(fileno=os.dup(number)) as connection:
        if _ends(connection.fileno())[1] == peer:
            connection.shutdown(socket.SHUT_RDWR)


def _ends(number: int) -> tuple[int, Peer]:
    """The near end's port and the far end of a TCP connection. Raises OSError or ValueError for anything else."""
    borrowed = socket.socket(fileno=number)
    try:
        here, there = borrowed.getsockname(), borrowed.getpeername()
    finally:
        borrowed.detach()
    if not isinstance(here, tuple):
        raise ValueError("no TCP connection")
    return int(here[1]), Peer(_plain(str(there[0])), int(there[1]))


def _plain(address: str) -> str:
    """The address, that of IPv4 where IPv6 wraps one. Raises ValueError."""
    ip = ipaddress.ip_address(address.split("%", 1)[0])
    return str((ip.ipv4_mapped if isinstance(ip, ipaddress.IPv6Address) else None) or ip)

"""Makes a protocol for each connection of a port, which comes through the doors first."""

import asyncio
import socket
import ssl
from asyncio import selector_events, sslproto
from collections.abc import Callable

from polyfleet.gateway.ports.doors import Doors, Visit
from polyfleet.gateway.ports.taking import Source, Taking
from polyfleet.process.tasks import Tasks

# Each TLS connection has a buffer of this size from its first byte on. With asyncio's 256 KiB, a thousand handshakes
# that never end would take 300 MB. A TLS record has up to 16 KiB.
sslproto.SSLProtocol.max_size = 32 * 1024  # type: ignore[attr-defined]
# What is read of a connection at once bounds how long it holds the event loop. asyncio's 256 KiB are 40,000 chunks.
selector_events._SelectorSocketTransport.max_size = 32 * 1024  # type: ignore[attr-defined]


class Acceptor:
    """Makes a protocol for each visit. `close` and `wait_closed` as asyncio's servers have them."""

    def __init__(
        self,
        source: Source,
        doors: Doors,
        make_protocol: Callable[[Visit], asyncio.Protocol],
        tls: ssl.SSLContext | None,
        handshake_seconds: float,
    ) -> None:
        self.sockets = [source]
        self._doors = doors
        self._make_protocol = make_protocol
        self._tls = tls
        self._handshake_seconds = handshake_seconds
        self._handshakes = Tasks()
        self._taking = Taking(source, self._admit, lambda: doors.refuse("no_descriptor"))
        self._taking.go_on()

    def leave(self) -> None:
        """Take the connections that wait, and no more."""
        self._taking.finish()

    def close(self) -> None:
        """Take no more connections; those in their handshake end."""
        self._taking.pause()
        self._handshakes.cancel()

    async def wait_closed(self) -> None:
        """Until `close` has taken effect."""
        await self._handshakes.end()

    def _admit(self, connection: socket.socket, address: str) -> None:
        visit = Visit(address, connection.close)
        if not self._doors.enter(visit):
            connection.close()
            return
        task = self._handshakes.start(self._connect(connection, visit))
        visit.close = lambda: _cancel(task)

    async def _connect(self, connection: socket.socket, visit: Visit) -> None:
        """Hand over to a protocol, behind the TLS handshake. It tells the doors when the connection ends."""
        timeout = self._handshake_seconds if self._tls else None
        loop, connected = asyncio.get_running_loop(), False
        try:
            await loop.connect_accepted_socket(
                lambda: self._make_protocol(visit), connection, ssl=self._tls, ssl_handshake_timeout=timeout
            )
            connected = True
        except (OSError, asyncio.TimeoutError):  # the handshake failed, or took too long
            self._doors.refuse("handshake")
        finally:
            if not connected:
                self._doors.leave(visit)
                connection.close()


def _cancel(task: "asyncio.Task[None]") -> None:
    task.cancel()

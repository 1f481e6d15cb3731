"""Takes connections off a listening socket, each through the doors first.

Asyncio's own server counts nothing, and where descriptors run out it writes a line for every place in its backlog.
"""

import asyncio
import logging
import socket
import ssl
from asyncio import selector_events, sslproto
from collections.abc import Callable

from polyfleet.gateway.ports.doors import Doors, Visit
from polyfleet.process.tasks import Tasks, end

ACCEPTS_AT_ONCE = 16  # before others get their turn in the event loop
MAX_WAITING = 1024  # taken at the end, before the port closes
PAUSE_SECONDS = 0.1  # when the system gives no more connections
# Each TLS connection has a buffer of this size from its first byte on. With asyncio's 256 KiB, a thousand handshakes
# that never end would take 300 MB. A TLS record has up to 16 KiB.
sslproto.SSLProtocol.max_size = 32 * 1024  # type: ignore[attr-defined]
# What is read of a connection at once bounds how long it holds the event loop. asyncio's 256 KiB are 40,000 chunks.
selector_events._SelectorSocketTransport.max_size = 32 * 1024  # type: ignore[attr-defined]
log = logging.getLogger(__name__)


class Acceptor:
    """Makes a protocol for each visit. `close` and `wait_closed` as asyncio's servers have them."""

    def __init__(
        self,
        listener: socket.socket,
        doors: Doors,
        make_protocol: Callable[[Visit], asyncio.Protocol],
        tls: ssl.SSLContext | None,
        handshake_seconds: float,
    ) -> None:
        self.sockets = [listener]
        self._listener = listener
        self._doors = doors
        self._make_protocol = make_protocol
        self._tls = tls
        self._handshake_seconds = handshake_seconds
        self._handshakes = Tasks()
        listener.setblocking(False)
        self._task = asyncio.get_running_loop().create_task(self._accept())

    async def leave(self) -> None:
        """Take the connections that wait, and no more: what waits in the queue of a port that closes is reset."""
        await end(self._task)
        for _ in range(MAX_WAITING):
            try:
                connection, peer = self._listener.accept()
            except OSError:  # none waits, or none can be had
                return
            connection.setblocking(False)
            self._admit(connection, str(peer[0]))

    def close(self) -> None:
        """Take no more connections; those in their handshake end."""
        self._task.cancel()
        self._handshakes.cancel()

    async def wait_closed(self) -> None:
        """Until `close` has taken effect."""
        await end(self._task)
        await self._handshakes.end()

    async def _accept(self) -> None:
        loop, accepted = asyncio.get_running_loop(), 0
        while True:
            try:
                connection, peer = await loop.sock_accept(self._listener)
            except OSError as error:
                self._doors.refuse("no_descriptor")
                log.warning("No connection can be accepted: %s.", error.strerror or error)
                await asyncio.sleep(PAUSE_SECONDS)
                continue
            self._admit(connection, str(peer[0]))
            accepted += 1
            if accepted % ACCEPTS_AT_ONCE == 0:
                await asyncio.sleep(0)

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

"""Takes connections off a source, as a listening socket is one, without holding the event loop for long.

Asyncio's own server takes as many at once as its backlog has places, and where descriptors run out it writes a line for
each of them.
"""

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Any, Protocol

from polyfleet.process.listening import open_socket, parse_address

TAKEN_AT_ONCE = 16  # before others get their turn in the event loop
MAX_WAITING = 1024  # taken at the end
PAUSE_SECONDS = 0.1  # when the system gives no more connections
log = logging.getLogger(__name__)


class Source(Protocol):
    """Where a port's connections come from."""

    def fileno(self) -> int:
        """Can be read when one waits; -1 once it is closed."""
        ...

    def accept(self) -> tuple[socket.socket, Any]:
        """The next and its peer's address. Raises BlockingIOError while none waits, EOFError when none comes any more.

        Other OSErrors: none can be had now.
        """
        ...

    def close(self) -> None:
        """No more are wanted."""
        ...


def opened(address: str, flag: str, source: Source | None = None) -> tuple[Source, int]:
    """The source of a port at host:port, and its number: the one that is given, else a socket that listens there.

    Raises ListenError, which names `flag`.
    """
    if source is not None:
        return source, parse_address(address, flag)[1]
    listener = open_socket(address, flag)
    listener.setblocking(False)
    return listener, listener.getsockname()[1]


class Taking:
    """Gives `admit` each connection and its peer's host from `go_on` to `pause`; `failed` hears of each lost."""

    def __init__(
        self, source: Source, admit: Callable[[socket.socket, str], None], failed: Callable[[], None] = lambda: None
    ) -> None:
        self._source, self._admit, self._failed = source, admit, failed
        self._loop = asyncio.get_running_loop()
        self._later: asyncio.TimerHandle | None = None

    def go_on(self) -> None:
        """Take those that come."""
        self.pause()
        self._loop.add_reader(self._source.fileno(), self._take, TAKEN_AT_ONCE)

    def pause(self) -> None:
        """Take none."""
        if self._later is not None:
            self._later.cancel()
            self._later = None
        if self._source.fileno() >= 0:
            self._loop.remove_reader(self._source.fileno())

    def finish(self) -> None:
        """Take those that wait, and no more: what waits in the queue of a port that closes is reset."""
        self.pause()
        if self._source.fileno() >= 0:
            self._take(MAX_WAITING)
        self.pause()

    def _take(self, most: int) -> None:
        for _ in range(most):
            try:
                connection, peer = self._source.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except EOFError:
                self.pause()
                return
            except OSError as error:
                self._failed()
                log.warning("No connection can be accepted: %s.", error.strerror or error)
                self.pause()
                self._later = self._loop.call_later(PAUSE_SECONDS, self.go_on)
                return
            connection.setblocking(False)
            self._admit(connection, str(peer[0]))

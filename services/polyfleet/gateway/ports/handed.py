"""Connections that another process has accepted, which gives them to this one over a pair of sockets, one by one.

For each this process answers that it has been taken, and later that it is closed, so that the other one knows how many
are here, and gives to somebody else those that nobody took.
"""

import asyncio
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from errno import EMFILE
from typing import Any

GIVEN = b"g"  # comes with a connection
TAKEN, CLOSED, LEFT = b"t", b"c", b"l"  # answers; the last: no more are taken


class Handed:
    """A source of connections: see `taking.Source`. `channel`: this process's end. Lives in the running event loop."""

    def __init__(self, channel: socket.socket) -> None:
        channel.setblocking(False)
        channel.set_inheritable(False)
        self._channel, self._unsaid, self._left = channel, bytearray(), False
        self._loop = asyncio.get_running_loop()

    def fileno(self) -> int:
        """See Source, here and below."""
        return -1 if self._left else self._channel.fileno()

    def accept(self) -> tuple[socket.socket, Any]:
        """One at a time, for the bytes of several would be read as one."""
        message, descriptors, _, _ = socket.recv_fds(self._channel, 1, 1)
        if not message:
            raise EOFError
        self._say(TAKEN)
        try:
            connection = _Connection(descriptors, lambda: self._say(CLOSED))
        except OSError:
            self._say(CLOSED)
            raise
        try:
            return connection, connection.getpeername()
        except OSError:  # it is gone already, as whoever reads from it will find
            return connection, ("", 0)

    def close(self) -> None:
        """No more are taken; of those that are here the other process hears on."""
        if self._left:
            return
        self._left = True
        with suppress(OSError):
            self._channel.shutdown(socket.SHUT_RD)
            while descriptors := socket.recv_fds(self._channel, 1, 1)[1]:  # came at the last moment: for others
                os.close(descriptors[0])
        self._say(LEFT)

    def _say(self, what: bytes) -> None:
        self._unsaid += what
        self._speak()

    def _speak(self) -> None:
        try:
            del self._unsaid[: self._channel.send(self._unsaid)]
        except BlockingIOError:  # the other process is stopped, or far behind
            self._loop.add_writer(self._channel, self._speak)
            return
        except OSError:  # it has ended
            self._unsaid.clear()
        if not self._loop.is_closed():
            self._loop.remove_writer(self._channel)


class _Connection(socket.socket):
    """Tells when it is closed. Raises OSError where no descriptor was left for it."""

    def __init__(self, descriptors: list[int], closed: Callable[[], None]) -> None:
        if not descriptors:
            raise OSError(EMFILE, os.strerror(EMFILE))
        try:
            super().__init__(fileno=descriptors[0])
        except OSError:  # where it has been reset already, on macOS
            with suppress(OSError):
                os.close(descriptors[0])
            raise
        self.set_inheritable(False)
        self._tell = closed

    def close(self) -> None:
        """As all sockets', and once more does no harm."""
        was_open = self.fileno() >= 0
        super().close()
        if was_open:
            self._tell()

"""A connection's transport that can be closed: the refusal reaches a client which still sends, the rest is bounded."""

import asyncio
from collections.abc import Callable
from contextlib import suppress

LINGER_SECONDS = 5.0
SMALL_BYTES = 4096


class LingeringTransport:
    """What a protocol needs of `transport`, which it wraps. `unread` tells whether the client may still be sending.

    `close` sends what is written and the end of the stream, then reads on (the protocol throws it away) until the
    client closes too: closing with unread bytes would reset the connection, and the answer could be lost on its way.
    A client that takes nothing for LINGER_SECONDS, or has it all and does not close, is cut off.
    """

    def __init__(self, transport: asyncio.Transport, unread: Callable[[], bool]) -> None:
        self._transport = transport
        self._unread = unread
        self._closing = False
        self._timer: asyncio.TimerHandle | None = None
        self._paused = False  # by the protocol
        self._rest_timer: asyncio.TimerHandle | None = None
        self.write = transport.write
        self.get_extra_info = transport.get_extra_info
        self.get_write_buffer_size = transport.get_write_buffer_size
        self.abort = transport.abort

    @property
    def resting(self) -> bool:
        """Whether `rest` has not ended yet."""
        return self._rest_timer is not None

    def rest(self, seconds: float) -> None:
        """Read nothing for so long, or until the protocol resumes, whichever is later; then in small pieces."""
        self._transport.max_size = SMALL_BYTES  # type: ignore[attr-defined]
        if self._rest_timer is not None:
            self._rest_timer.cancel()
        self._transport.pause_reading()
        self._rest_timer = asyncio.get_running_loop().call_later(seconds, self._rested)

    def pause_reading(self) -> None:
        """As transports have it."""
        self._paused = True
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        """As transports have it."""
        self._paused = False
        if not self.resting:
            self._transport.resume_reading()

    def is_closing(self) -> bool:
        """Whether no answer can be written any more."""
        return self._closing or self._transport.is_closing()

    def close(self) -> None:
        """See the class."""
        if self._closing:
            return
        self._closing = True
        self._cut_when_stuck(0)
        if not self._unread():
            self._transport.close()
            return
        self.resume_reading()
        if self._transport.can_write_eof():
            with suppress(OSError):  # who has reset the connection takes no end of it
                self._transport.write_eof()

    def closed(self) -> None:
        """The connection is gone: forget it."""
        for timer in (self._timer, self._rest_timer):
            if timer is not None:
                timer.cancel()

    def _rested(self) -> None:
        self._rest_timer = None
        if not self._paused:
            self._transport.resume_reading()

    def _cut_when_stuck(self, before: int) -> None:
        """`before`: bytes that waited for the client at the last look; 0: this is the first one."""
        waiting = self._transport.get_write_buffer_size()
        if before and waiting in (0, before):
            self._transport.abort()
        else:
            self._timer = asyncio.get_running_loop().call_later(LINGER_SECONDS, self._cut_when_stuck, waiting or 1)

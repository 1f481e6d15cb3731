"""What a connection of HTTP/2 sends: all frames of a turn of the event loop in one piece, messages as there is room."""

import asyncio
from contextlib import suppress
from itertools import islice

from polyfleet.gateway.grpc.http2 import frames
from polyfleet.gateway.grpc.http2.call import Call
from polyfleet.gateway.grpc.http2.patience import Patience

MAX_PENDING_BYTES = 256 * 1024  # of messages, for one turn of the event loop
ROOM_EACH = 256  # bytes, of calls that wait for some
MAX_UNREAD_BYTES = 2 * 1024 * 1024  # that only answers to frames which ask for nothing can come to
LINGER_SECONDS = 1.0  # for a client to end a connection that has ended here
NO_TABLE = b"\x20"  # HPACK's: nothing here refers to headers that were sent before


class Sender(asyncio.Protocol):
    """One connection's sending half. Lives in one event loop."""

    _transport: asyncio.Transport
    max_unread = MAX_UNREAD_BYTES

    def __init__(self) -> None:
        self.waiting: dict[Call, None] = {}  # for room to send
        self.initial_window = frames.DEFAULT_WINDOW  # of a call: bytes that may be sent,
        self._window = frames.DEFAULT_WINDOW  # and of all together
        self._full = False  # the peer does not read
        self._loop = asyncio.get_running_loop()
        self._patience = Patience(self._loop.time())
        self._out: list[bytes] = []
        self._pending = 0  # bytes of it
        self._flushing = self._closed = False
        self._told = False  # that there is no table

    # asyncio.Protocol.

    def pause_writing(self) -> None:
        """The peer reads too slowly."""
        self._full = True

    def resume_writing(self) -> None:
        """It has caught up."""
        self._full = False
        self._wake()

    # For calls.

    @property
    def room(self) -> int:
        """Bytes of messages that may be sent now."""
        return 0 if self._full or self._pending >= MAX_PENDING_BYTES else self._window

    def send_data(self, stream: int, data: bytes) -> None:
        """Of a call, MAX_FRAME_BYTES at most, for which there is room."""
        self._patience.restore()
        self._window -= len(data)
        self.send(frames.data_frame(stream, data))

    def send_headers(self, stream: int, headers: tuple[tuple[bytes, bytes], ...], *, end: bool) -> None:
        """Before or behind a call's messages.

        The first block ends HPACK's table: a client that allows a smaller one then waits for no word (RFC 7541, 4.2).
        """
        before, self._told = b"" if self._told else NO_TABLE, True
        self.send(frames.header_frames(stream, headers, end=end, before=before))

    def send(self, data: bytes) -> None:
        """Frames, with all else of this turn of the event loop in one piece."""
        self._out.append(data)
        self._pending += len(data)
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        if not self._closed:
            self._transport.write(b"".join(self._out))
            if self._transport.get_write_buffer_size() > self.max_unread:
                self.cut()
        self._out.clear()
        self._pending = 0
        self._wake()

    def _widen(self, size: int) -> None:
        """The client takes so many bytes more. Raises ConnectionProblem."""
        self._window = frames.widened(self._window, size)
        self._wake()

    def _wake(self) -> None:
        """As many calls as may find room, in their turn: each that sends, or leaves, wakes others."""
        if (room := self.room) > 0:
            ready = (call for call in self.waiting if call.window > 0)
            for call in list(islice(ready, 1 + room // ROOM_EACH)):
                call.wake()

    # Its end.

    def close(self) -> None:
        """End it behind what was sent.

        The client ends it first, for a while: closed while something of his comes, it would take back what was sent.
        """
        self._flush()
        if self._closed:
            return
        self._closed = True
        if self._transport.can_write_eof():
            self._transport.resume_reading()
            with suppress(OSError):  # who has reset the connection takes no end of it
                self._transport.write_eof()
            self._loop.call_later(LINGER_SECONDS, self._transport.abort)
        else:
            self._transport.close()  # TLS has a way of its own

    def cut(self) -> None:
        """End it now."""
        self._closed = True
        self._transport.abort()

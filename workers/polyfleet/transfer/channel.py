"""Channel: frames over one connected socket, none of which is waited for longer than a deadline allows."""

import os
import select
import socket
import ssl
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

import numpy as np

from polyfleet.kvcache.checksum import Checksum
from polyfleet.kvcache.portable import Buffer
from polyfleet.transfer import frames
from polyfleet.transfer.frames import CHECKSUM_BYTES, HEADER_BYTES, BadFrame, End, Message

MessageT = TypeVar("MessageT")
MOST_PARTS = 512  # that one call sends
_SEEN_BYTES = 1 << 20  # that a checksum is made of at a time: a part of a CPU core's cache


class Stalled(OSError):
    """The peer took, or sent, nothing for too long."""


class Refused(ValueError):
    """The peer does not do what it was asked for, and says why."""


class Channel:
    """One end. `shared`: descriptors of memory can travel with frames.

    Sending and receiving may each be one thread's; `close` is anybody's, and ends both.
    """

    def __init__(self, end: socket.socket, *, shared: bool = False) -> None:
        self.shared = shared
        self.deadline = time.monotonic()  # of whatever is sent or received; move it before
        self.heard = self.deadline  # when the last frame began to come
        self.largest = 0  # magnitude in the last frame's payload
        self.descriptor = -1  # of memory, that came with the last frame
        self._socket = end
        self._summing = ThreadPoolExecutor(1, "transfer checksum")  # begins with the first payload

    def allow(self, seconds: float) -> None:
        """What comes next may take so long."""
        self.deadline = time.monotonic() + seconds

    def send(self, message: Message, payload: Sequence[Buffer] = (), descriptor: int = -1) -> None:
        """Send a frame and its payload's parts, all of it. Raises Stalled and OSError."""
        parts = [memoryview(part).cast("B") for part in payload]
        head, body = frames.head_and_body(message, sum(part.nbytes for part in parts))
        begun = [memoryview(head + body)]
        try:
            if descriptor >= 0:
                self._in_time()
                socket.send_fds(self._socket, [begun.pop()], [descriptor])
            if parts:  # whose checksum is made while they leave
                made = self._summing.submit(frames.checksum_of, body, parts)
                self._send(begun + parts)
                self._send([memoryview(made.result())])
            else:
                self._send([*begun, memoryview(frames.checksum_of(body))])
        except TimeoutError:
            raise Stalled("the peer does not read what it is sent") from None

    def receive(
        self, into: memoryview | None = None, *, most: int = 0, number_bytes: int = 0
    ) -> tuple[Message, memoryview]:
        """The next frame and its payload of `most` bytes, in `into` where it is given and large enough.

        Of numbers of `number_bytes`, 2 or 4, `largest` is then the largest magnitude, as bits.
        Raises BadFrame, Stalled, EOFError where the peer has closed, and OSError.
        """
        head = frames.head_of(self._read(memoryview(bytearray(HEADER_BYTES)), carries=True))
        self.heard = time.monotonic()
        if head.payload_bytes > most:
            raise BadFrame(f"{head.payload_bytes} bytes came with a frame that may have {most}")
        body = self._read(memoryview(bytearray(head.message_bytes)))
        if into is None or into.nbytes < head.payload_bytes:
            into = np.empty(head.payload_bytes, np.uint8).data  # which large pages may hold
        checksum = Checksum(body, number_bytes)
        payload = self._read(into[: head.payload_bytes], checksum=checksum)
        message = frames.message_of(body, checksum, self._read(memoryview(bytearray(CHECKSUM_BYTES))))
        self.largest = checksum.largest
        return message, payload

    def expect(self, kind: type[MessageT], *, most: int = 0) -> tuple[MessageT, memoryview]:
        """The same where it must be one of this kind. Raises BadFrame for others, Refused for an End that came."""
        message, payload = self.receive(most=most)
        if isinstance(message, kind):
            return message, payload
        if isinstance(message, End):
            raise Refused(message.reason or "the peer has nothing to give")
        raise BadFrame(f"{type(message).__name__} came where {kind.__name__} was expected")

    def closed_by_peer(self) -> bool:
        """Whether the peer is known to have gone; over TLS that shows only when something is sent."""
        if isinstance(self._socket, ssl.SSLSocket):
            return False
        poll = select.poll()  # for a socket with a timeout waits in spite of MSG_DONTWAIT
        poll.register(self._socket, select.POLLIN)
        try:
            return bool(poll.poll(0)) and not self._socket.recv(1, socket.MSG_PEEK)
        except OSError:
            return True

    def close(self) -> None:
        """End the connection: whoever sends or receives gets an OSError or EOFError."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._keep(-1)

    def _send(self, parts: list[memoryview]) -> None:
        """As many at a time as the system takes."""
        if isinstance(self._socket, ssl.SSLSocket):
            for part in parts:
                self._in_time()
                self._socket.sendall(part)
            return
        first = 0
        while first < len(parts):
            self._in_time()
            sent = self._socket.sendmsg(parts[first : first + MOST_PARTS])
            while first < len(parts) and sent >= parts[first].nbytes:
                sent -= parts[first].nbytes
                first += 1
            if sent:
                parts[first] = parts[first][sent:]

    def _keep(self, descriptor: int) -> None:
        """Of those that come, the last one."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
        self.descriptor = descriptor

    def _read(self, buffer: memoryview, *, carries: bool = False, checksum: Checksum | None = None) -> memoryview:
        """Fill the buffer. The checksum sees what has come while that is in the CPU's cache."""
        done = seen = 0
        try:
            while done < buffer.nbytes:
                self._in_time()
                if carries and self.shared:
                    data, descriptors, _, _ = socket.recv_fds(self._socket, buffer.nbytes - done, 1)
                    buffer[done : done + len(data)] = data
                    for descriptor in descriptors:
                        self._keep(descriptor)
                    count = len(data)
                else:
                    count = self._socket.recv_into(buffer[done:])
                if not count:
                    raise EOFError("the peer has closed the connection")
                done += count
                if checksum is not None and (done == buffer.nbytes or done - seen >= _SEEN_BYTES):
                    checksum.update(buffer[seen:done])
                    seen = done
        except TimeoutError:
            raise Stalled("the peer sends nothing") from None
        return buffer

    def _in_time(self) -> None:
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise Stalled("the peer takes too long")
        self._socket.settimeout(left)

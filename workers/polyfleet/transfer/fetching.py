"""Fetch: the fetching side of one transfer, on a thread of its own. The engine takes chunks as they come."""

import logging
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from queue import Empty, LifoQueue, SimpleQueue

import numpy as np

from polyfleet.kvcache.portable import KvLayout, converted, require_finite
from polyfleet.kvcache.travelling import Chunk, Wanted, chunk_tokens, chunks_on_way
from polyfleet.transfer.channel import Channel, Refused, Stalled
from polyfleet.transfer.frames import (
    Ask,
    BadFrame,
    Blocks,
    End,
    Hello,
    Layout,
    Release,
    Wait,
    Welcome,
    chunk_arrays,
    layout_of,
)
from polyfleet.transfer.memory import SharedSlots, copied
from polyfleet.transfer.settings import Certificates
from polyfleet.transfer.transports import connect
from polyfleet.wire.hashing import adapter_salt, prefix_root
from polyfleet.wire.tickets import CHALLENGE_BYTES, PrefixSource, proof, proves

log = logging.getLogger(__name__)
CONNECT_SECONDS = 2.0
STALL_SECONDS = 3.0  # between two frames, where the peer has what is wanted


class Fetch:
    """`take` chunks until `over`; `reason` then says why not all has come: a word of engine/travel, or empty."""

    def __init__(
        self,
        source: PrefixSource,
        wanted: Wanted,
        seconds: float,
        certificates: Certificates | None,
        arrived: Callable[[], None],
    ) -> None:
        """It may take so many seconds in all; `arrived` is called from its thread whenever there is news."""
        self.reason, self.over, self.bytes, self.seconds = "", False, 0, 0.0
        self._source, self._wanted, self._certificates = source, wanted, certificates
        self._until = time.monotonic() + seconds
        self._arrived = arrived
        self._chunks: SimpleQueue[tuple[Chunk, int]] = SimpleQueue()  # with the buffer that it lies in
        self._begun: deque[float] = deque()  # when their frames began to come, of chunks that are not released
        self._released = 0.0  # when the last one was
        self._free: LifoQueue[int] = LifoQueue()  # what was read just now is in a cache of the CPU
        self._unread: set[int] = set()  # slots
        self._buffers: list[memoryview] = []
        self._most_buffers = 1
        self._size = 0  # bytes of a chunk at most
        self._slots: SharedSlots | None = None
        self._channel: Channel | None = None
        self._abandoned = threading.Event()

    def start(self) -> None:
        """On a thread of its own."""
        threading.Thread(target=self._run, name="fetch", daemon=True).start()

    @property
    def waiting(self) -> int:
        """Chunks that can be taken now."""
        return self._chunks.qsize()

    def take(self) -> tuple[Chunk, int] | None:
        """The next chunk and the number to `release` when it has been read; None: nothing yet."""
        try:
            return self._chunks.get_nowait()
        except Empty:
            return None

    def release(self, number: int) -> None:
        """A chunk has been read: what it lies in is written again."""
        now = time.monotonic()
        self.seconds += now - max(self._begun.popleft(), self._released)
        self._released = now
        self._free.put(number)
        self._unread.discard(number)
        channel = self._channel
        if channel is not None and self._lies_there:
            try:
                channel.send(Release(number))
            except OSError:
                channel.close()

    @property
    def _lies_there(self) -> bool:
        """Whether chunks are read in the memory that the peer shares."""
        return self._slots is not None and self._wanted.host_buffers is None

    def abandon(self) -> None:
        """Nobody wants it any more."""
        self._abandoned.set()
        if self._channel is not None:
            self._channel.close()

    def _run(self) -> None:
        try:
            self._channel = channel = connect(self._source, min(self._left(), CONNECT_SECONDS), self._certificates)
            try:
                self._fetch(channel)
                self._see_all_read(channel)
            finally:
                channel.close()
        except Stalled:
            self.reason = "stalled"
        except Refused as error:
            self.reason = "refused"
            log.info("A prefix is not fetched from %s: %s.", self._source.address, error)
        except ValueError as error:  # frames that are none, or that were damaged
            self.reason = "damaged"
            log.warning("A prefix that %s sent can't be used: %s.", self._source.address, error)
        except (EOFError, OSError) as error:
            self.reason = "unreachable" if self._channel is None else "lost"
            log.info("A prefix is not fetched from %s: %s.", self._source.address, error)
        except Exception:
            self.reason = "lost"
            log.exception("Fetching a prefix failed.")
        finally:
            if self._slots is not None:
                self._slots.close()
            self.over = True
            self._arrived()

    def _fetch(self, channel: Channel) -> None:
        self._introduce(channel)
        layout = self._learn(channel)
        self._size = chunk_tokens(layout, self._wanted.grain) * layout.token_bytes
        expected = self._wanted.first
        receive = partial(channel.receive, most=self._size, number_bytes=layout.scanned_bytes)
        while True:
            self._allow(channel)
            number, buffer = self._buffer()
            message, payload = receive(buffer)
            while isinstance(message, Wait):
                self._allow(channel)
                message, payload = receive(buffer)
            if isinstance(message, End):
                if message.reason:
                    raise Refused(message.reason)
                return
            if not isinstance(message, Blocks) or not self._follows(message, expected):
                raise BadFrame("a chunk came that does not follow the one before, or is not what was wanted")
            largest: int | None = channel.largest
            if self._slots is not None:
                payload = self._slots.slot(message.slot, message.tokens * layout.token_bytes)
                number, largest = message.slot if self._lies_there else number, None
            if self._lies_there:
                if number in self._unread:
                    raise BadFrame("a chunk came in a slot that has not been read")
                self._unread.add(number)
            elif self._slots is not None:
                payload, largest = self._taken_over(payload, buffer, layout)
                channel.send(Release(message.slot))
            elif buffer is None or buffer.nbytes < payload.nbytes:
                self._buffers[number] = payload
            arrays = chunk_arrays(layout, message.tokens, payload)
            dtypes = layout.dtype, self._wanted.layout.dtype
            require_finite(arrays, layout.dtype, largest)
            mine = arrays if len({*dtypes}) == 1 else tuple(converted(each, *dtypes) for each in arrays)
            chunk = Chunk(expected, mine)
            expected += message.tokens
            self.bytes += payload.nbytes
            self._put(chunk, number)

    def _follows(self, message: Blocks, expected: int) -> bool:
        """Whether a chunk begins there, holds something and ends within what is wanted."""
        grain, end = self._wanted.grain, len(self._wanted.token_ids)
        fits = message.tokens > 0 and message.tokens % grain == 0
        return fits and message.first == expected and expected + message.tokens <= end

    def _taken_over(
        self, theirs: memoryview, buffer: memoryview | None, layout: KvLayout
    ) -> tuple[memoryview, int | None]:
        """A copy of what lies in the peer's memory, and what was seen in it."""
        if buffer is None or buffer.nbytes < theirs.nbytes:
            raise BadFrame("a chunk is larger than it may be")
        mine = buffer[: theirs.nbytes]
        largest = copied(theirs, mine, layout.scanned_bytes)
        return mine, largest if layout.scanned_bytes else None

    def _see_all_read(self, channel: Channel) -> None:
        """All has come: memory that the peer shares it may use again once the engine has read what lies in it."""
        self.over = True
        self._arrived()
        if self._lies_there:
            self._abandoned.wait(max(0.0, self._until - time.monotonic()))

    def _introduce(self, channel: Channel) -> None:
        """Show the ticket, see that the peer knows it, and ask."""
        wanted, source = self._wanted, self._source
        root = prefix_root(wanted.layout.model, adapter_salt(wanted.salt, wanted.adapter))
        challenge = secrets.token_bytes(CHALLENGE_BYTES)
        self._allow(channel)
        channel.send(Hello(source.ticket, root, challenge))
        welcome, _ = channel.expect(Welcome)
        challenges = challenge + welcome.challenge
        if len(challenges) != 2 * CHALLENGE_BYTES or not proves(welcome.proof, source.secret, "serve", challenges):
            raise Refused("the peer does not know the ticket")
        mine = proof(source.secret, "fetch", challenges)
        model, first, grain = wanted.layout.model, wanted.first, wanted.grain
        ask = Ask(mine, model, wanted.adapter, wanted.salt, first, grain)
        channel.send(ask, [np.array(wanted.token_ids, "<u4").tobytes()])

    def _learn(self, channel: Channel) -> KvLayout:
        """What its numbers are like."""
        self._allow(channel)
        message, _ = channel.expect(Layout)
        layout, mine = layout_of(message), self._wanted.layout
        if (layout.model, layout.caches) != (mine.model, mine.caches):
            raise Refused("the peer's model, or the shapes of its caches, are others than this worker's")
        self._most_buffers = chunks_on_way(layout, self._wanted.grain)
        if message.slots:
            descriptor, channel.descriptor = channel.descriptor, -1
            if not channel.shared or descriptor < 0 or message.slots > 64:
                raise BadFrame("the peer says that memory is shared which is not")
            self._slots = SharedSlots(descriptor, message.slots, message.slot_bytes, writable=False)
        return layout

    def _buffer(self) -> tuple[int, memoryview | None]:
        """Where the next payload may lie: what was read, or new memory while there is little."""
        if self._lies_there:
            return -1, None
        if len(self._buffers) < self._most_buffers and self._free.empty():
            self._buffers.append(memoryview(b""))
            self._free.put(len(self._buffers) - 1)
        while True:
            try:
                number = self._free.get(timeout=min(0.1, self._left()))
                break
            except Empty:
                self._go_on()
        make = self._wanted.host_buffers  # of such a device may still read what it was given
        return number, make(self._size) if make else self._buffers[number] or None

    def _put(self, chunk: Chunk, number: int) -> None:
        if self._channel is not None:
            self._begun.append(self._channel.heard)
        self._chunks.put((chunk, number))
        self._arrived()

    def _go_on(self) -> None:
        if self._abandoned.is_set():
            raise EOFError("it is not wanted any more")

    def _allow(self, channel: Channel) -> None:
        self._go_on()
        channel.allow(min(self._left(), STALL_SECONDS))

    def _left(self) -> float:
        left = self._until - time.monotonic()
        if left <= 0 or self._abandoned.is_set():
            raise Stalled("it takes longer than computing")
        return left

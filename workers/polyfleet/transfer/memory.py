"""Shared memory of two processes of one host: a few slots, written by one of them and read by the other."""

import fcntl
import mmap
import os
import threading
from contextlib import suppress

import numpy as np

from polyfleet.kernels.scan import scan

SEALS = getattr(fcntl, "F_SEAL_SHRINK", 2) | getattr(fcntl, "F_SEAL_GROW", 4)
_OTHERS_READ = 0x10 | getattr(fcntl, "F_SEAL_SEAL", 1)  # F_SEAL_FUTURE_WRITE: what is mapped from now on
MOST_KEPT = 4
_ADD_SEALS, _GET_SEALS = getattr(fcntl, "F_ADD_SEALS", 1033), getattr(fcntl, "F_GET_SEALS", 1034)


class SharedSlots:
    """`count` slots of `size` bytes. Its size is sealed, so that neither side can take the memory from the other."""

    others_read = False  # whoever else gets it can't write

    def __init__(self, descriptor: int, count: int, size: int, *, writable: bool) -> None:
        """Takes the descriptor over. Raises OSError for memory that is not of that size, or not sealed."""
        self.descriptor, self.count, self.size = descriptor, count, size
        try:
            if os.fstat(descriptor).st_size < count * size or fcntl.fcntl(descriptor, _GET_SEALS) & SEALS != SEALS:
                raise OSError("the peer's shared memory is not as large as it says, or may shrink")
            access = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
            self._map = mmap.mmap(descriptor, count * size, mmap.MAP_SHARED, access)
        except BaseException:
            os.close(descriptor)
            raise
        self._view = memoryview(self._map)
        self._free = list(range(count))

    @classmethod
    def create(cls, count: int, size: int) -> "SharedSlots":
        """New memory, for the side that writes."""
        descriptor = os.memfd_create("polyfleet-transfer", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(descriptor, count * size)
            fcntl.fcntl(descriptor, _ADD_SEALS, SEALS)
        except BaseException:
            os.close(descriptor)
            raise
        slots = cls(descriptor, count, size, writable=True)
        with suppress(OSError):  # Linux before 5.1
            fcntl.fcntl(descriptor, _ADD_SEALS, _OTHERS_READ)
            slots.others_read = True
        return slots

    @property
    def whole(self) -> bool:
        """Whether all that was taken has been read."""
        return len(self._free) == self.count

    def take(self) -> int | None:
        """A slot that nobody reads; None while there is none."""
        return self._free.pop() if self._free else None

    def release(self, slot: int) -> None:
        """It has been read. Raises ValueError for one that was not taken."""
        if not 0 <= slot < self.count or slot in self._free:
            raise ValueError(f"slot {slot} was not taken")
        self._free.append(slot)

    def slot(self, number: int, size: int | None = None) -> memoryview:
        """Its memory, or the first bytes of it. Raises ValueError for what there is not."""
        if not 0 <= number < self.count or not 0 <= (size or 0) <= self.size:
            raise ValueError(f"there is no slot {number} of {size} bytes")
        start = number * self.size
        return self._view[start : start + (self.size if size is None else size)]

    def close(self) -> None:
        """Give the memory back, once nobody looks at it any more."""
        os.close(self.descriptor)
        with suppress(BufferError):  # a view is left: the memory goes with that
            self._view.release()
            self._map.close()


def copied(source: memoryview, into: memoryview, number_bytes: int) -> int:
    """Copy memory that a peer shares; the largest magnitude of its numbers, as bits.

    Of numbers of `number_bytes`, 2 or 4; 0: nothing is looked at. What is looked at is the copy, which nobody else can
    write. All in one piece: each piece more would take Python's lock once more, which the engine's thread waits for.
    """
    given, taken = np.frombuffer(source, np.uint8), np.frombuffer(into, np.uint8)
    if number_bytes:
        return scan(given.view(f"<u{number_bytes}"), into=taken).largest
    np.copyto(taken, given)
    return 0


class KeptSlots:
    """Memory of transfers that are over, for the next ones: pages that are there need not be made and cleared, which
    takes several times as long as writing them. For the same prefix root alone, so that nobody finds in it what
    another tenant's ticket has opened. Threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: list[tuple[bytes, SharedSlots]] = []  # the youngest last

    def take(self, root: bytes, count: int, size: int) -> SharedSlots:
        """Memory of just so many slots. Raises OSError."""
        with self._lock:
            for at in reversed(range(len(self._kept))):
                of, slots = self._kept[at]
                if (of, slots.count, slots.size) == (root, count, size):
                    del self._kept[at]
                    return slots
        return SharedSlots.create(count, size)

    def give_back(self, root: bytes, slots: SharedSlots) -> None:
        """A transfer is over. Memory that the peer may still read, or could write, is not used again."""
        if not slots.whole or not slots.others_read:
            slots.close()
            return
        with self._lock:
            self._kept.append((root, slots))
            gone, self._kept = self._kept[:-MOST_KEPT], self._kept[-MOST_KEPT:]
        for _, each in gone:
            each.close()

    def close(self) -> None:
        """Give it all back."""
        with self._lock:
            kept, self._kept = self._kept, []
        for _, each in kept:
            each.close()


def available() -> bool:
    """Whether this system has such memory."""
    return hasattr(os, "memfd_create")

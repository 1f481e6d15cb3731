"""Checksum: finds damage in keys and values at memory's speed, wherever they lie or travel. Pure."""

from hashlib import blake2b

import numpy as np

from polyfleet.kernels.scan import ROW_BYTES, scan
from polyfleet.kvcache.portable import Buffer


class Checksum:
    """16 bytes of a message, or header, and its payload, which comes part by part.

    Against damage, not forgery, at memory's speed: of each 4,096 bytes of the payload the sum of their numbers of 64
    bits counts, modulo 2^64, and what is left at its end as it is. Of a payload of numbers of `number_bytes`, 2 or 4,
    `largest` is the largest magnitude, as bits, once the digest has been asked for: one look at memory finds both.
    """

    def __init__(self, body: Buffer, number_bytes: int = 0) -> None:
        self.largest = 0
        self._number_bytes = number_bytes
        self._digest = blake2b(body, digest_size=16)
        self._rest = bytearray()  # that fills no row yet

    def update(self, part: Buffer) -> None:
        """What comes next of the payload."""
        view = memoryview(part).cast("B")
        if self._rest:
            missing = ROW_BYTES - len(self._rest)
            self._rest += view[:missing]
            view = view[missing:]
            if len(self._rest) < ROW_BYTES:
                return
            self._add(self._rest)
        whole = len(view) // ROW_BYTES * ROW_BYTES
        if whole:
            self._add(view[:whole])
        self._rest = bytearray(view[whole:])

    def digest(self) -> bytes:
        """Once all has come."""
        if size := self._number_bytes:
            numbers = np.frombuffer(self._rest, f"<u{size}", len(self._rest) // size)
            self.largest = max(self.largest, scan(numbers).largest)
        self._digest.update(self._rest)
        return self._digest.digest()

    def _add(self, rows: Buffer) -> None:
        found = scan(np.frombuffer(rows, f"<u{self._number_bytes or 2}"), sums=True)
        self._digest.update(found.sums.data)
        self.largest = max(self.largest, found.largest)

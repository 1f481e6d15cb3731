"""Checksum: finds damage in keys and values at memory's speed, wherever they lie or travel. Pure."""

from hashlib import blake2b

import numpy as np

from polyfleet.kvcache.portable import Buffer

_ROW_BYTES = 4096  # whose numbers of 64 bits a checksum adds up


class Checksum:
    """16 bytes of a message, or header, and its payload, which comes part by part.

    Against damage, not forgery, at memory's speed: of each 4,096 bytes of the payload the sum of their numbers of 64
    bits counts, modulo 2^64, and what is left at its end as it is.
    """

    def __init__(self, body: Buffer) -> None:
        self._digest = blake2b(body, digest_size=16)
        self._rest = bytearray()  # that fills no row yet

    def update(self, part: Buffer) -> None:
        """What comes next of the payload."""
        view = memoryview(part).cast("B")
        if self._rest:
            missing = _ROW_BYTES - len(self._rest)
            self._rest += view[:missing]
            view = view[missing:]
            if len(self._rest) < _ROW_BYTES:
                return
            self._add(self._rest)
        whole = len(view) // _ROW_BYTES * _ROW_BYTES
        if whole:
            self._add(view[:whole])
        self._rest = bytearray(view[whole:])

    def digest(self) -> bytes:
        """Once all has come."""
        self._digest.update(self._rest)
        return self._digest.digest()

    def _add(self, rows: Buffer) -> None:
        numbers = np.frombuffer(rows, "<u8").reshape(-1, _ROW_BYTES // 8)
        self._digest.update(numbers.sum(axis=1, dtype="<u8").tobytes())

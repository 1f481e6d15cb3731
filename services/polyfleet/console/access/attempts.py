"""How often one address may try to sign in."""

import math
import time
from collections import OrderedDict
from collections.abc import Callable

MOST, SECONDS = 5, 60.0  # failures of an address within so long
MAX_ADDRESSES = 10_000


class Attempts:
    """Failures of the last minute, by address. `clock` is in seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failures: OrderedDict[str, list[float]] = OrderedDict()

    def wait(self, address: str) -> int:
        """Whole seconds until this address may try again; 0: now."""
        recent = self._recent(address)
        return math.ceil(recent[0] + SECONDS - self._clock()) if len(recent) >= MOST else 0

    def failed(self, address: str) -> None:
        """Count one."""
        self._failures[address] = [*self._recent(address), self._clock()][-MOST:]
        self._failures.move_to_end(address)
        if len(self._failures) > MAX_ADDRESSES:
            self._failures.popitem(last=False)

    def _recent(self, address: str) -> list[float]:
        since = self._clock() - SECONDS
        return [each for each in self._failures.get(address, ()) if each > since]

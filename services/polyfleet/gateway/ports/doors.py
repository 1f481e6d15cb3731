"""Who may be connected to a port: so many in all, so many from one address, and whom a full port sends away.

A port that is full closes the connection that has waited longest for nothing (no request under way), so that
connections which only hold their place keep nobody out; only where every one is busy, the newcomer is refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable


class Visit:
    """One connection. `close` ends it at once; whoever serves it keeps it right."""

    __slots__ = ("address", "close")

    def __init__(self, address: str, close: Callable[[], None]) -> None:
        self.address = address
        self.close = close


class Doors:
    """Counts the visits of one port; does no I/O. `refused` is told why a connection was closed or not let in."""

    def __init__(self, most: int, most_per_address: int, refused: Callable[[str], None]) -> None:
        self._most = most
        self._most_per_address = most_per_address
        self._refused = refused
        self._open: dict[Visit, None] = {}
        self._waiting: dict[Visit, None] = {}  # longest first
        self._by_address: Counter[str] = Counter()

    def __len__(self) -> int:
        """How many are open."""
        return len(self._open)

    def enter(self, visit: Visit) -> bool:
        """Let it in, waiting. False when the port, or its address's share, is full of busy ones."""
        if self._by_address[visit.address] >= self._most_per_address and not self._evict("address_full", visit.address):
            return False
        if len(self._open) >= self._most and not self._evict("full"):
            return False
        self._open[visit] = self._waiting[visit] = None
        self._by_address[visit.address] += 1
        return True

    def busy(self, visit: Visit) -> None:
        """A request of it is under way."""
        self._waiting.pop(visit, None)

    def wait(self, visit: Visit) -> None:
        """It waits for its next request."""
        if visit in self._open:
            self._waiting[visit] = None

    def leave(self, visit: Visit) -> None:
        """It is closed. Does no harm a second time."""
        if visit not in self._open:
            return
        del self._open[visit]
        self._waiting.pop(visit, None)
        self._by_address[visit.address] -= 1
        if not self._by_address[visit.address]:
            del self._by_address[visit.address]

    def refuse(self, reason: str) -> None:
        """Count a connection that is ended for this reason."""
        self._refused(reason)

    def _evict(self, reason: str, address: str = "") -> bool:
        """Make room; also tells of the newcomer for whom there is none."""
        self._refused(reason)
        longest = next((each for each in self._waiting if address in ("", each.address)), None)
        if longest is None:
            return False
        self.leave(longest)
        longest.close()
        return True

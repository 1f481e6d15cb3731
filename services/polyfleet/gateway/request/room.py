"""Workers that have enough to begin with: what else is for them waits at the gateway, where order can be kept."""

import asyncio
from collections.abc import Callable

from polyfleet.gateway.fleet.view import FleetView
from polyfleet.placement.fleet import Worker

LOOK_SECONDS = 0.01  # between looks while somebody waits for room
AHEAD = 4  # of this many sequences that a worker's batch holds, one may wait there


def has_enough(worker: Worker) -> bool:
    """Whether as many wait there as may come into its batch before its next report is heard."""
    return worker.waiting_sequences >= max(2, worker.max_sequences // AHEAD)


class Room:
    """Calls `found` once a worker that was waited for has room again, or is gone. Lives in one event loop."""

    def __init__(self, view: FleetView, found: Callable[[], None]) -> None:
        self._view, self._found = view, found
        self._full: set[str] = set()
        self._timer: asyncio.TimerHandle | None = None

    def wait_for(self, worker_id: str) -> None:
        """Look for room at this worker too, from now on."""
        self._full.add(worker_id)
        self._timer = self._timer or asyncio.get_running_loop().call_later(LOOK_SECONDS, self._look)

    def _look(self) -> None:
        fleet, self._timer = self._view.fleet(), None
        if any((worker := fleet.worker(each)) is None or not has_enough(worker) for each in self._full):
            self._full.clear()
            self._found()
        else:
            self._timer = asyncio.get_running_loop().call_later(LOOK_SECONDS, self._look)

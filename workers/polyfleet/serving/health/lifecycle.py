"""A worker's state and what is wrong with it. Knows neither engine nor sequences.

STARTING ──▶ LOADING ──▶ READY ◀──trouble, recovery──▶ UNHEALTHY      DRAINING, and UNHEALTHY by `fail`, are final
"""

import logging

from polyfleet.process.revision import Revision
from polyfleet.v1 import fleet_pb2 as fleet

log = logging.getLogger(__name__)


class Lifecycle:
    """`revision` advances with each new state or reason. Single-threaded."""

    def __init__(self, revision: Revision) -> None:
        self.state = fleet.WORKER_STATE_STARTING
        self.reason = ""
        self.failed = False  # for good
        self.reservation = ""  # said of a worker that is ready: what is not known of it
        self._revision = revision
        self._troubles: dict[str, str] = {}

    def enter(self, state: "fleet.WorkerState.ValueType", reason: str = "") -> None:
        """Be in this state now."""
        if (state, reason) == (self.state, self.reason):
            return
        self.state, self.reason = state, reason
        name = fleet.WorkerState.Name(state).removeprefix("WORKER_STATE_")
        level = logging.ERROR if reason and state != fleet.WORKER_STATE_READY else logging.INFO
        log.log(level, "State is %s%s", name, f": {reason}" if reason else ".")
        self._revision.advance()

    def remark(self, reason: str) -> None:
        """What there is to say of a load under way; nothing in any other state."""
        if self.state == fleet.WORKER_STATE_LOADING:
            self.enter(self.state, reason)

    def fail(self, reason: str) -> None:
        """UNHEALTHY for good."""
        self.failed = True
        self.enter(fleet.WORKER_STATE_UNHEALTHY, reason)

    def trouble(self, source: str, reason: str) -> bool:
        """`source` says in one sentence what is wrong; False when it said just that before."""
        if self._troubles.get(source) == reason:
            return False
        self._troubles[source] = reason
        self._settle_if_serving()
        return True

    def recover(self, source: str) -> None:
        """`source` finds nothing wrong any more."""
        if self._troubles.pop(source, None) is not None:
            self._settle_if_serving()

    def settle(self) -> None:
        """READY, or UNHEALTHY for as long as there is a trouble."""
        if self._troubles:
            self.enter(fleet.WORKER_STATE_UNHEALTHY, " ".join(self._troubles.values()))
        else:
            self.enter(fleet.WORKER_STATE_READY, self.reservation)

    @property
    def doing(self) -> str:
        """What keeps the worker from other things, behind "The worker"."""
        return {
            fleet.WORKER_STATE_STARTING: "has no model",
            fleet.WORKER_STATE_LOADING: "is loading a model",
            fleet.WORKER_STATE_READY: "serves a model already",
            fleet.WORKER_STATE_DRAINING: "is draining",
        }.get(self.state, f"is unhealthy: {self.reason}")

    def _settle_if_serving(self) -> None:
        """In any other state it shows once the model is loaded, or never."""
        suspended = self.state == fleet.WORKER_STATE_UNHEALTHY and not self.failed
        if suspended or self.state == fleet.WORKER_STATE_READY:
            self.settle()

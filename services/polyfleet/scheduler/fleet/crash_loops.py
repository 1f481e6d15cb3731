"""Which of the chart's pools lose worker after worker: their pods start again and again. Pure; times are given.

Nobody here starts these workers, so nobody sees them end: one that falls silent and does not come back has ended.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from polyfleet.v1 import fleet_pb2 as pb

WINDOW_SECONDS = 1800.0  # Kubernetes waits up to 5 minutes before it starts a container again
SETTLE_SECONDS = 15.0  # in which a worker may come back that was only not heard
LEAST_ENDS = 3  # within the window
MAX_ENDS = 1000  # remembered


@dataclass(frozen=True, slots=True)
class _End:
    time: float
    model: str
    accelerator: str
    ready: bool  # it had been
    reason: str


class CrashLoops:
    """Remembers workers that ended without being told to."""

    def __init__(self) -> None:
        self._ends: dict[tuple[str, int], _End] = {}  # by worker id and pid

    def ended(self, info: pb.WorkerInfo, reason: str, now: float, *, ready: bool) -> None:
        """A worker fell silent; `reason` is what it said last, `ready` whether it ever was."""
        if info.own_model or info.intended_model:
            model = info.model.name or info.intended_model
            self._ends[info.worker_id, info.pid] = _End(now, model, info.accelerator, ready, reason)
        while len(self._ends) > MAX_ENDS:
            del self._ends[next(iter(self._ends))]

    def came_back(self, info: pb.WorkerInfo) -> None:
        """It had not ended."""
        self._ends.pop((info.worker_id, info.pid), None)

    def problems(self, pools: Iterable[pb.ModelDeployment], now: float) -> list[str]:
        """For each pool a sentence on its workers' ends; empty for one that has had few."""
        self._ends = {key: end for key, end in self._ends.items() if now - end.time < WINDOW_SECONDS}
        ends = [end for end in self._ends.values() if now - end.time >= SETTLE_SECONDS]
        return [self._problem(pool, ends) for pool in pools]

    def _problem(self, pool: pb.ModelDeployment, settled: Iterable[_End]) -> str:
        name = pool.model_name or pool.name
        ends = [end for end in settled if end.model == name and end.accelerator in pool.accelerators]
        if len(ends) < LEAST_ENDS:
            return ""
        when = "" if any(end.ready for end in ends) else " before they were ready"
        reason = next((end.reason for end in reversed(ends) if end.reason), "the last one's log says why").rstrip(".")
        return f"Pool {pool.name} loses worker after worker: {len(ends)} ended within half an hour{when} ({reason})."

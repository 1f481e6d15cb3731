"""How many workers a deployment is to have by what it has to do. Pure; times are given.

Load above the aims asks for more at once; fewer there are only when fewer would have been enough for a while. Nothing
asks for none as long as somebody waits, something runs, or somebody asked a short while ago.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import ceil

from polyfleet.scheduler.fleet.demand import ModelLoad
from polyfleet.scheduler.fleet.record import Record
from polyfleet.scheduler.revisions import within
from polyfleet.v1 import fleet_pb2 as pb

QUEUE_SECONDS, KV_USE, IDLE_SECONDS, DOWN_SECONDS = 1.0, 0.8, 300.0, 300.0
SLACK = 0.1  # load within so much of the aim asks for no change
SETTLING_SECONDS = 40.0  # behind the last moment without a ready worker
MOST_GROWTH = 2.0  # times the ready workers, before more of them have shown what they take


@dataclass(frozen=True, slots=True)
class WorkerLoad:
    """What a deployment's ready workers have to do. `use` is the mean share of KV cache or sequences that is taken."""

    ready: int = 0
    use: float = 0.0
    busy: bool = False


def worker_load(records: Iterable[Record], deployment: str) -> WorkerLoad:
    """Of this deployment's or pool's workers."""
    ready = [
        (record.info.model, record.shown)
        for record in records
        if record.info.deployment == deployment and record.shown.state == pb.WORKER_STATE_READY
    ]
    uses = []
    for model, status in ready:
        sequences = status.running_sequences + status.waiting_sequences
        taken = 1 - status.free_blocks / model.num_blocks if model.num_blocks else 0.0
        uses.append(max(taken, sequences / max(1, model.max_sequences)))
    busy = any(status.running_sequences + status.waiting_sequences for _, status in ready)
    return WorkerLoad(len(ready), sum(uses) / len(uses) if uses else 0.0, busy)


def asked_for(aims: pb.Autoscaling, workers: int, load: WorkerLoad, demand: ModelLoad, *, idle: bool) -> int:
    """Workers that the load of this moment asks for; `workers` are wished for now."""
    if not demand.queued and not load.busy and idle:
        wanted = 0
    elif not load.ready:
        wanted = max(workers, 1) if demand.queued else workers
    else:
        late = demand.queue_seconds / (aims.queue_seconds or QUEUE_SECONDS)
        ratio = max(load.use / (aims.kv_use or KV_USE), late if late > 1 else 0.0)
        wanted = load.ready if abs(ratio - 1) <= SLACK else max(1, ceil(load.ready * min(ratio, MOST_GROWTH)))
    return within(aims, wanted)


class Scaling:
    """One deployment's: what it was asked for lately."""

    def __init__(self) -> None:
        self._asked: deque[tuple[float, int]] = deque()  # the most since each of these times, falling
        self._active: float | None = None  # when somebody last asked for anything
        self._unready = float("-inf")  # when there was no ready worker

    def step(self, aims: pb.Autoscaling, workers: int, load: WorkerLoad, demand: ModelLoad, now: float) -> int:
        """Workers to wish for from now on, where `workers` are now."""
        self._active = max(now if self._active is None or demand.queued or load.busy else self._active, demand.active)
        idle = now - self._active >= (aims.idle_seconds or IDLE_SECONDS)
        if not load.ready:
            self._unready = now
        if now - self._unready < SETTLING_SECONDS:
            demand = replace(demand, queue_seconds=0.0)  # those who waited for the first worker say nothing of more
        wanted = asked_for(aims, workers, load, demand, idle=idle)
        self._asked = self._asked or deque([(now, workers)])
        while self._asked and self._asked[-1][1] <= wanted:
            self._asked.pop()
        self._asked.append((now, wanted))
        while now - self._asked[0][0] > (aims.down_seconds or DOWN_SECONDS):
            self._asked.popleft()
        held = wanted if idle and not wanted else max(wanted, min(workers, self._asked[0][1]))
        return within(aims, held)

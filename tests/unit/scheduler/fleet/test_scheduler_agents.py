"""What the registry makes of workers that joined through an agent, and of processes that register again."""

import pytest

from polyfleet.scheduler.fleet.registry import Registry, TakenError
from polyfleet.v1 import fleet_pb2 as pb

READY = pb.WorkerStatus(state=pb.WORKER_STATE_READY)


def state(registry: Registry) -> tuple[int, str]:
    (worker,) = registry.snapshot().workers
    return worker.status.state, worker.status.reason


def test_an_agents_worker_is_lost_after_a_longer_silence() -> None:
    registry = Registry("epoch")
    registry.register(pb.WorkerInfo(worker_id="mac", joined=True), stream=1, now=0.0)
    registry.report("mac", READY, stream=1, now=0.0)
    for second in range(16):
        registry.sweep(now=float(second))
    assert state(registry) == (pb.WORKER_STATE_READY, "")
    registry.sweep(now=15.5)
    assert state(registry) == (pb.WORKER_STATE_LOST, "no report for 15 s")


def test_a_process_may_register_again_while_its_old_stream_seems_open() -> None:
    registry = Registry("epoch")
    mine, another = (pb.WorkerInfo(worker_id="mac", pid=10, process=each) for each in ("p-1", "p-2"))
    registry.register(mine, stream=1, now=0.0)
    registry.report("mac", READY, stream=1, now=0.1)
    with pytest.raises(TakenError, match="reports under it"):
        registry.register(another, stream=2, now=0.2)
    registry.register(mine, stream=3, now=0.3)
    registry.report("mac", pb.WorkerStatus(state=pb.WORKER_STATE_DRAINING), stream=1, now=0.4)
    assert state(registry) == (pb.WORKER_STATE_READY, "")

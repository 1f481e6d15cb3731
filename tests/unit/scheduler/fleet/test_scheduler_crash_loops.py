"""Pools of the chart whose workers end again and again are said to do so; those that only blink are not."""

import pytest

from polyfleet.scheduler.fleet.crash_loops import LEAST_ENDS, SETTLE_SECONDS, WINDOW_SECONDS
from polyfleet.scheduler.fleet.record import LOST_AFTER_SECONDS
from polyfleet.scheduler.fleet.registry import Registry
from polyfleet.v1 import fleet_pb2 as pb

POOL = pb.ModelDeployment(name="cpu", model_name="m", accelerators=["cpu"], workers=2)
LOADING, READY, UNHEALTHY = pb.WORKER_STATE_LOADING, pb.WORKER_STATE_READY, pb.WORKER_STATE_UNHEALTHY
SILENCE = LOST_AFTER_SECONDS + 1.0


class Pool:
    """A registry with a pool, and a clock that its sweeps follow."""

    def __init__(self) -> None:
        self.registry = Registry("e", [POOL])
        self.now = 1000.0
        self.stream = 0

    def wait(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            self.now = min(end, self.now + 0.5)
            self.registry.sweep(self.now)

    def worker(self, worker_id: str, *states: int, pid: int = 1, reason: str = "", model: str = "m") -> None:
        """One registers, goes through these states, and is heard no more."""
        self.stream += 1
        info = pb.WorkerInfo(worker_id=worker_id, accelerator="cpu", own_model=True, intended_model=model, pid=pid)
        self.registry.register(info, self.stream, self.now)
        for state in states:
            self.registry.report(worker_id, pb.WorkerStatus(state=state, reason=reason), self.stream, self.now)  # type: ignore[arg-type]

    @property
    def problem(self) -> str:
        (pool,) = self.registry.snapshot().pools
        return pool.problem


@pytest.mark.parametrize("names", [("w-1", "w-2", "w-3"), ("w-1", "w-1", "w-1")], ids=["pods", "one name"])
def test_workers_that_end_before_they_are_ready(names: tuple[str, ...]) -> None:
    pool = Pool()
    for number, name in enumerate(names):
        assert pool.problem == ""
        pool.worker(name, LOADING, UNHEALTHY, pid=number, reason="the file is cut off.")
        pool.wait(SILENCE)
    pool.wait(SETTLE_SECONDS)
    assert pool.problem == (
        "Pool cpu loses worker after worker: 3 ended within half an hour before they were ready (the file is cut off)."
    )
    version = pool.registry.snapshot().version
    pool.wait(1)
    assert pool.registry.snapshot().version == version
    pool.wait(WINDOW_SECONDS)
    assert pool.problem == ""


def test_workers_that_end_after_they_were_ready() -> None:
    pool = Pool()
    for number in range(LEAST_ENDS):
        pool.worker(f"w-{number}", LOADING, READY)
        pool.wait(SILENCE + SETTLE_SECONDS)
    assert pool.problem == (
        "Pool cpu loses worker after worker: 3 ended within half an hour (the last one's log says why)."
    )


def test_workers_that_come_back_or_leave_or_are_of_another_model_are_no_matter() -> None:
    pool = Pool()
    for number in range(5):
        pool.worker(f"other-{number}", LOADING, model="other")
        pool.worker(f"leaves-{number}", READY, pb.WORKER_STATE_DRAINING)
    for _ in range(5):
        for number in range(3):
            pool.worker(f"blinks-{number}", READY)
        pool.wait(SILENCE)
        assert pool.problem == ""

"""How many workers there are to be by what they have to do."""

from hypothesis import given
from hypothesis import strategies as st
from tests.support.launch_records import record

from polyfleet.scheduler.deployments.autoscaling import (
    SETTLING_SECONDS,
    Scaling,
    WorkerLoad,
    asked_for,
    worker_load,
)
from polyfleet.scheduler.fleet.demand import ModelLoad
from polyfleet.v1 import fleet_pb2 as pb

AIMS = pb.Autoscaling(min_workers=0, max_workers=8, idle_seconds=60, down_seconds=100)
WAITING = ModelLoad(queued=1, queue_seconds=5.0)
QUIET = ModelLoad()
loads = st.builds(WorkerLoad, st.integers(0, 20), st.floats(0, 1), st.booleans())
demands = st.builds(ModelLoad, st.integers(0, 1000), st.integers(0, 1000), st.floats(0, 1e4))
aims = st.builds(
    lambda least, more, queue, use: pb.Autoscaling(
        min_workers=least, max_workers=max(1, least + more), queue_seconds=queue, kv_use=use
    ),
    st.integers(0, 10),
    st.integers(0, 10),
    st.floats(0.1, 10),
    st.floats(0.1, 1),
)


def busy(ready: int, use: float = 0.5) -> WorkerLoad:
    return WorkerLoad(ready, use, busy=True)


def test_workers_are_as_full_as_their_cache_or_their_slots() -> None:
    full, slots, other = record("a"), record("b"), record("c", "LOADING")
    full.info.model.num_blocks, full.status.free_blocks = 10, 1
    slots.info.model.max_sequences, slots.status.running_sequences = 4, 2
    found = worker_load([full, slots, other, record("x", deployment="other")], "d")
    assert (found.ready, round(found.use, 3), found.busy) == (2, 0.7, True)
    assert worker_load([], "d") == WorkerLoad()


def test_use_above_the_aim_asks_for_more_and_below_for_fewer() -> None:
    def ask(use: float, ready: int = 4) -> int:
        return asked_for(AIMS, ready, busy(ready, use), QUIET, idle=False)

    assert [ask(use) for use in (0.95, 0.85, 0.8, 0.75, 0.4, 0.1, 0.0)] == [5, 4, 4, 4, 2, 1, 1]
    assert ask(1.0, 8) == 8


def test_long_waits_ask_for_at_most_twice_the_ready_workers() -> None:
    assert asked_for(AIMS, 2, busy(2), ModelLoad(queue_seconds=1.5), idle=False) == 3
    assert asked_for(AIMS, 2, busy(2), ModelLoad(queue_seconds=60), idle=False) == 4
    assert asked_for(AIMS, 4, busy(2), ModelLoad(queue_seconds=60), idle=False) == 4  # two are on their way


def test_none_while_nobody_asks_and_one_for_the_first_who_does() -> None:
    scaling = Scaling()
    assert scaling.step(AIMS, 1, WorkerLoad(1), QUIET, 0) == 1
    assert scaling.step(AIMS, 1, WorkerLoad(1), QUIET, 59) == 1
    assert scaling.step(AIMS, 1, WorkerLoad(1), QUIET, 60) == 0
    assert scaling.step(AIMS, 0, WorkerLoad(), QUIET, 1000) == 0
    assert scaling.step(AIMS, 0, WorkerLoad(), WAITING, 1001) == 1
    assert scaling.step(AIMS, 1, WorkerLoad(), WAITING, 1002) == 1  # it loads
    assert scaling.step(AIMS, 1, WorkerLoad(), QUIET, 1003) == 1  # who waited has left: it comes up all the same
    assert scaling.step(AIMS, 1, busy(1, 0.1), QUIET, 1050) == 1
    assert scaling.step(AIMS, 1, WorkerLoad(1), QUIET, 1109) == 1
    assert scaling.step(AIMS, 1, WorkerLoad(1), QUIET, 1110) == 0


def test_a_short_request_keeps_the_worker() -> None:
    scaling = Scaling()
    scaling.step(AIMS, 1, WorkerLoad(1), QUIET, 0)
    assert scaling.step(AIMS, 1, WorkerLoad(1), ModelLoad(active=50), 100) == 1
    assert scaling.step(AIMS, 1, WorkerLoad(1), ModelLoad(active=50), 110) == 0


def test_those_who_waited_for_the_first_worker_ask_for_no_second_one() -> None:
    scaling, waited = Scaling(), ModelLoad(queue_seconds=90)
    scaling.step(AIMS, 1, WorkerLoad(), WAITING, 0)
    assert scaling.step(AIMS, 1, busy(1), waited, 1) == 1
    assert scaling.step(AIMS, 1, busy(1), waited, SETTLING_SECONDS + 1) == 2


def test_fewer_workers_only_when_fewer_were_enough_for_a_while() -> None:
    scaling = Scaling()
    assert scaling.step(AIMS, 4, busy(4, 0.8), QUIET, 0) == 4
    assert scaling.step(AIMS, 4, busy(4, 0.2), QUIET, 50) == 4
    assert scaling.step(AIMS, 4, busy(4, 0.5), QUIET, 90) == 4
    assert scaling.step(AIMS, 4, busy(4, 0.2), QUIET, 101) == 3  # as many as 0.5 of 4 asked for since
    assert scaling.step(AIMS, 3, busy(3, 0.2), QUIET, 191) == 1


def test_bounds_that_change_hold_at_once() -> None:
    assert Scaling().step(pb.Autoscaling(min_workers=3, max_workers=5), 1, busy(1), QUIET, 0) == 3
    assert Scaling().step(pb.Autoscaling(min_workers=1, max_workers=2), 6, busy(6, 0.9), QUIET, 0) == 2


@given(aims, st.integers(0, 20), loads, demands, st.booleans())
def test_bounds_hold_and_none_is_for_nobody_alone(
    wanted: pb.Autoscaling, workers: int, load: WorkerLoad, demand: ModelLoad, idle: bool
) -> None:
    found = asked_for(wanted, workers, load, demand, idle=idle)
    assert wanted.min_workers <= found <= wanted.max_workers
    if demand.queued or (load.busy and load.ready):
        assert found >= 1


@given(aims, st.integers(1, 20), st.integers(1, 20), st.floats(0, 1), st.floats(0, 1), demands)
def test_more_load_never_asks_for_fewer(
    wanted: pb.Autoscaling, workers: int, ready: int, one: float, other: float, demand: ModelLoad
) -> None:
    low, high = (asked_for(wanted, workers, busy(ready, use), demand, idle=False) for use in sorted((one, other)))
    assert low <= high


@given(st.lists(st.tuples(st.floats(0, 40), st.floats(0, 1), st.floats(0, 5)), min_size=1, max_size=60))
def test_the_number_never_falls_below_what_was_asked_for_within_the_window(
    steps: list[tuple[float, float, float]],
) -> None:
    aims = pb.Autoscaling(min_workers=1, max_workers=8, down_seconds=100)
    scaling, now, workers = Scaling(), 0.0, 1
    asked: list[tuple[float, int]] = []
    for pause, use, wait in steps:
        now += pause
        load, demand = busy(workers, use), ModelLoad(queue_seconds=wait)
        asked.append((now, asked_for(aims, workers, load, demand, idle=False)))
        before, workers = workers, scaling.step(aims, workers, load, demand, now)
        assert workers >= min(before, max(each for at, each in asked if now - at <= 100))

"""Every field of a wire snapshot arrives in placement's dataclasses."""

import pytest

from polyfleet.placement.fleet import FleetSnapshot, Worker, WorkerState
from polyfleet.placement.proto import ReportCheck, snapshot_from_proto
from polyfleet.v1 import fleet_pb2 as pb


def test_a_snapshot_arrives_whole() -> None:
    message = pb.FleetSnapshot(
        scheduler_epoch="e-1",
        version=7,
        workers=[
            pb.FleetWorker(
                info=pb.WorkerInfo(
                    worker_id="worker-1",
                    address="10.0.0.1:5000",
                    accelerator="cuda",
                    model=pb.ModelInfo(name="m", context_length=4096, block_size=32, num_blocks=99, max_sequences=8),
                ),
                status=pb.WorkerStatus(
                    state=pb.WORKER_STATE_READY,
                    running_sequences=1,
                    waiting_sequences=2,
                    waiting_prefill_tokens=3,
                    free_blocks=4,
                    prefill_tokens_per_second=5.5,
                    decode_tokens_per_second=6.5,
                ),
            )
        ],
    )
    worker = Worker("worker-1", "10.0.0.1:5000", "m", "cuda", WorkerState.READY, 4096, 32, 99, 4, 8, 1, 2, 3, 5.5, 6.5)
    assert snapshot_from_proto(message) == FleetSnapshot("e-1", 7, (worker,))


@pytest.mark.parametrize("state", [*pb.WorkerState.values(), 99])
def test_every_state_has_a_meaning_and_only_ready_is_ready(state: pb.WorkerState.ValueType) -> None:
    message = pb.FleetSnapshot(workers=[pb.FleetWorker(status=pb.WorkerStatus(state=state))])
    (worker,) = snapshot_from_proto(message).workers
    assert (worker.state is WorkerState.READY) == (state == pb.WORKER_STATE_READY)
    known = state in pb.WorkerState.values() and state != pb.WORKER_STATE_UNSPECIFIED
    name = pb.WorkerState.Name(state).removeprefix("WORKER_STATE_").lower() if known else "unknown"
    assert worker.state.value == name


def test_reports_are_held_against_the_last_sound_one() -> None:
    check, info = ReportCheck(), pb.WorkerInfo(model=pb.ModelInfo(context_length=64, block_size=16, num_blocks=4))

    def told(step: int, seconds: float, state: pb.WorkerState.ValueType = pb.WORKER_STATE_READY) -> str:
        counters = pb.EngineCounters(step_seconds=seconds)
        return check.problem(info, pb.WorkerStatus(state=state, step=step, counters=counters))

    assert told(1, 5.0) == told(2, 8.0) == ""
    assert told(3, 3.0) == told(4, 3.0) == "seconds in steps: 3, after 8 before"  # which itself is no measure
    assert told(5, 3.0, pb.WORKER_STATE_LOADING) == ""
    assert told(6, 8.5) == ""
    assert told(0, 0.5) == ""  # another engine

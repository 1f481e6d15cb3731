"""Every field of a wire snapshot arrives in placement's dataclasses."""

import pytest

from polyfleet.placement.fleet import FleetSnapshot, Worker, WorkerState
from polyfleet.placement.proto import snapshot_from_proto
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

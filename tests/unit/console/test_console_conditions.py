"""What the console judges itself."""

from polyfleet.console.fleet.conditions import judged
from polyfleet.v1 import fleet_pb2 as pb


def test_workers_that_are_down_for_one_reason_are_one_line() -> None:
    snapshot = pb.FleetSnapshot()
    for number in range(5):
        status = pb.WorkerStatus(state=pb.WORKER_STATE_UNHEALTHY, reason="The canary failed.")
        snapshot.workers.add(info=pb.WorkerInfo(worker_id=f"w-{number}"), status=status)
    snapshot.workers.add(info=pb.WorkerInfo(worker_id="w-lost"), status=pb.WorkerStatus(state=pb.WORKER_STATE_LOST))
    snapshot.workers.add(info=pb.WorkerInfo(worker_id="w-well"), status=pb.WorkerStatus(state=pb.WORKER_STATE_READY))
    found = {(each.word, each.summary) for each in judged(snapshot, [])}
    assert found == {("unhealthy", "w-0, w-1, w-2 … (5) The canary failed."), ("lost", "w-lost")}

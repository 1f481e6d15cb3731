"""A worker stays registered, whatever goes wrong while it reports."""

from typing import Any

import pytest
from tests.support.fake_fleet import FakeFleet

from polyfleet.process import tasks
from polyfleet.process.channels import FleetAccess
from polyfleet.process.revision import Revision
from polyfleet.serving.registration import Registration
from polyfleet.v1 import fleet_pb2 as pb


class FaultyWorker:
    """One whose first look at itself fails."""

    def __init__(self) -> None:
        self.revision, self._looks = Revision(), 0

    def info(self) -> pb.WorkerInfo:
        return pb.WorkerInfo(worker_id="w")

    def status(self) -> pb.WorkerStatus:
        self._looks += 1
        if self._looks == 1:
            raise ValueError("a fault")
        return pb.WorkerStatus(state=pb.WORKER_STATE_READY)


async def test_a_fault_while_it_reports_is_logged_and_it_registers_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tasks, "BEGIN_SECONDS", 0.01)
    worker: Any = FaultyWorker()
    running = tasks.Tasks()
    async with FakeFleet() as fleet:
        running.keep(Registration(worker, fleet.address, FleetAccess()).run)
        await fleet.until(lambda: "READY" in fleet.states())
        await running.end()
    assert [str(record.exc_info[1]) for record in caplog.records if record.exc_info] == ["a fault"]

"""A worker stays registered, whatever goes wrong while it reports."""

import asyncio
import itertools
import logging
from typing import Any

import pytest
from tests.support.fake_fleet import FakeFleet

from polyfleet.process import tasks
from polyfleet.process.channels import FleetAccess
from polyfleet.process.revision import Revision
from polyfleet.serving import registration
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


async def test_reasons_that_take_turns_are_told_once_each(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, registration.__name__)
    reasons = itertools.cycle("aab")
    worker: Any = None
    registering = Registration(worker, "host:1", FleetAccess(), longest_pause=0.001)

    async def dial() -> str:
        return next(reasons)

    monkeypatch.setattr(registering, "_dial", dial)
    running = asyncio.create_task(registering.run())
    while len(caplog.records) < 9:
        await asyncio.sleep(0.01)
    running.cancel()
    said = [record.message[-1] for record in caplog.records if record.levelno == logging.WARNING]
    assert said == ["a", "b"]


async def test_it_dials_when_there_is_a_way(caplog: pytest.LogCaptureFixture) -> None:
    worker: Any = FaultyWorker()
    up = asyncio.Event()
    async with FakeFleet() as fleet:
        running = asyncio.create_task(Registration(worker, fleet.address, FleetAccess(), up=up).run())
        await asyncio.sleep(0.1)
        assert not fleet.tokens
        up.set()
        await fleet.until(lambda: bool(fleet.tokens))
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

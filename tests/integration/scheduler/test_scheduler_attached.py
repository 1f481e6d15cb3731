"""Looking after a worker that others start, with a real worker process beside and no Ray."""

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.ports import free_address
from tests.support.running_worker import RunningWorker

from polyfleet.process.channels import FleetAccess
from polyfleet.scheduler.config import LaunchConfig
from polyfleet.scheduler.launcher.attached import AttachedWorker
from polyfleet.scheduler.launcher.latest_report import LatestReport
from polyfleet.scheduler.launcher.launch import LauncherReport, LaunchSpec, Phase
from polyfleet.scheduler.launcher.worker_client import WorkerClient
from polyfleet.v1 import fleet_pb2 as fleet
from polyfleet.v1 import worker_pb2 as pb


class Looking:
    """One launcher's inside."""

    def __init__(self, address: str, source: str = "fake:", deployment: str = "d") -> None:
        load = pb.LoadRequest(deployment=deployment, model_name=deployment, source=source)
        launch = LaunchConfig(mode="attach", address=address)
        spec = LaunchSpec("launcher-1", "cpu", load.SerializeToString(), launch, "127.0.0.1:1", "/nowhere")
        self.latest = LatestReport(spec)
        self.worker = AttachedWorker(spec, self.latest, FleetAccess())
        self.task = asyncio.create_task(self.worker.run())

    async def until(self, condition: Callable[[LauncherReport], bool]) -> LauncherReport:
        while not condition(self.latest.report):
            await self.latest.next(self.latest.report.revision, 1.0)
        return self.latest.report


async def test_it_waits_for_the_worker_loads_it_and_loads_it_again_after_a_crash(tmp_path: Path) -> None:
    address = free_address()
    looking = Looking(address)
    waiting = await looking.until(lambda r: bool(r.reason))
    assert (waiting.phase, waiting.reason) == (Phase.STARTING, f"It waits for a worker at {address}.")
    options = ("--listen", address, "--worker-id", "w-own")
    async with RunningWorker(tmp_path, *options) as worker:
        await looking.until(lambda r: r.phase is Phase.WATCHING)
        await worker.until_state(fleet.WORKER_STATE_READY)
        info = (await worker.status()).info
        assert (info.deployment, info.model.name) == ("d", "d")
        assert looking.latest.report.worker_id == "w-own"
        worker.signal(signal.SIGKILL)  # perhaps before its answer to the load arrives: a restart follows all the same
    failed = await looking.until(lambda r: r.phase is Phase.FAILED)
    assert failed.reason == f"The worker at {address} does not answer."
    async with RunningWorker(tmp_path, *options) as worker:
        await worker.until_state(fleet.WORKER_STATE_READY)
        await looking.until(lambda r: r.restarts == 1)
        await looking.worker.stop(grace=5.0)
        assert looking.latest.report.phase is Phase.LEFT
        status = await worker.status()
        assert status.status.state == fleet.WORKER_STATE_STARTING
        assert not status.info.HasField("model")


async def test_a_crash_while_it_loads_counts_as_a_restart(tmp_path: Path) -> None:
    address = free_address()
    looking = Looking(address, "fake:load_seconds=60")
    options = ("--listen", address, "--worker-id", "w-own")
    for restarts in (0, 1):
        async with RunningWorker(tmp_path, *options) as worker:
            await worker.until_state(fleet.WORKER_STATE_LOADING)
            await looking.until(lambda r, n=restarts: r.restarts == n)  # type: ignore[misc]
            worker.signal(signal.SIGKILL)
        await looking.until(lambda r: r.phase is Phase.FAILED)
    await looking.worker.stop(grace=0.1)


async def test_a_worker_that_serves_the_wish_already_is_left_as_it_is(tmp_path: Path) -> None:
    async with RunningWorker(tmp_path, "--deployment", "fake", "--launched", model="fake:") as worker:
        before = worker.engine().pid
        looking = Looking(worker.address, deployment="fake")
        await looking.until(lambda r: r.phase is Phase.WATCHING)
        assert worker.engine().pid == before
        await looking.worker.stop(grace=5.0)


async def test_another_model_of_the_same_deployment_is_replaced(tmp_path: Path) -> None:
    flags = ("--deployment", "d", "--model-name", "old", "--launched")
    async with RunningWorker(tmp_path, *flags, model="fake:") as worker:
        looking = Looking(worker.address)
        await looking.until(lambda r: r.phase is Phase.WATCHING)
        while (await worker.status()).info.model.name != "d":
            await asyncio.sleep(0.02)
        await looking.worker.stop(grace=5.0)


@pytest.mark.parametrize(
    ("flags", "owner"),
    [
        (("--deployment", "other", "--launched"), "serves the deployment 'other'"),
        (("--deployment", "d"), "was started with its own model, "),
    ],
)
async def test_another_owners_worker_is_left_alone_until_it_is_free(
    tmp_path: Path, flags: tuple[str, ...], owner: str
) -> None:
    async with RunningWorker(tmp_path, *flags, model="fake:") as worker:
        before = worker.engine().pid
        looking = Looking(worker.address)
        waiting = await looking.until(lambda r: owner in r.reason)
        assert (waiting.phase, waiting.worker_id) == (Phase.STARTING, "")
        assert waiting.reason.endswith("it is left alone until it is free.")
        assert worker.engine().pid == before
        async with WorkerClient(worker.address, FleetAccess()) as client:
            await client.unload()  # by its owner
        await looking.until(lambda r: r.phase is Phase.WATCHING)
        await looking.worker.stop(grace=5.0)


async def test_stopping_leaves_another_owners_worker_alone(tmp_path: Path) -> None:
    async with RunningWorker(tmp_path, "--deployment", "d", model="fake:") as worker:
        looking = Looking(worker.address)
        await looking.until(lambda r: "own model" in r.reason)
        await looking.worker.stop(grace=5.0)
        assert (await worker.status()).status.state == fleet.WORKER_STATE_READY


async def test_a_model_that_cannot_be_served_is_reported_and_the_worker_left_running(tmp_path: Path) -> None:
    async with RunningWorker(tmp_path) as worker:
        looking = Looking(worker.address, "fake:unusable=1")
        failed = await looking.until(lambda r: r.phase is Phase.FAILED)
        assert failed.reason == "fake:unusable=1 is truncated: it ends in the middle of a tensor."
        await looking.worker.stop(grace=5.0)
        assert (await worker.status()).status.state == fleet.WORKER_STATE_STARTING


async def test_stopping_waits_for_running_sequences(tmp_path: Path) -> None:
    async with RunningWorker(tmp_path, "--deployment", "fake", "--launched", model="fake:step_seconds=0.02") as worker:
        looking = Looking(worker.address, "fake:step_seconds=0.02", deployment="fake")
        await looking.until(lambda r: r.phase is Phase.WATCHING)
        async with worker.session() as session:
            await session.start(pb.StartSequence(sequence_id="s", prompt_ids=[1], max_tokens=40))
            while not (await session.event()).deltas:  # until it runs
                pass
            stopping = asyncio.create_task(looking.worker.stop(grace=30.0))
            deltas = (await session.run_to_end())["s"]
            assert sum(len(delta.token_ids) for delta in deltas) > 30
        await stopping
        assert (await worker.status()).status.state == fleet.WORKER_STATE_STARTING


async def test_stopping_while_it_loads_frees_the_worker(tmp_path: Path) -> None:
    async with RunningWorker(tmp_path) as worker:
        looking = Looking(worker.address, "fake:load_seconds=60")
        await worker.until_state(fleet.WORKER_STATE_LOADING)
        await looking.worker.stop(grace=0.1)
        assert (await worker.status()).status.state == fleet.WORKER_STATE_STARTING

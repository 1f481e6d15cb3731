"""The ends and beginnings of a scheduler's life: what it knows and does when it returns, how it leaves."""

import asyncio
from pathlib import Path

from tests.support.fake_cluster import FakeCluster
from tests.support.fake_worker import FakeWorker
from tests.support.running_scheduler import Running, start, states, stop

from polyfleet.scheduler.launcher.launch import Phase
from polyfleet.v1 import fleet_pb2 as pb

WISH = pb.ModelDeployment(name="d", source="/m.gguf", workers=1)


async def remembered(running: Running, worker_id: str) -> None:
    """Once its state says that there is this worker."""
    while worker_id not in running.scheduler._store.workers():
        await asyncio.sleep(0.01)


async def test_a_returning_scheduler_hears_the_workers_before_it_starts_or_tells_anything(tmp_path: Path) -> None:
    before = await start(tmp_path)
    await before.fleet.Deploy(pb.DeployRequest(deployment=WISH))
    await before.until(lambda s: s.workers)
    worker_id = before.cluster.launched[0].worker_id
    async with FakeWorker(worker_id, fleet=before.address, deployment="d") as worker:
        before.cluster.report(worker_id, phase=Phase.WATCHING)
        await before.until(lambda s: states(s) == {worker_id: "READY"})
        await remembered(before, worker_id)
        await stop(before)
        worker.fleet = ""  # it does not find the scheduler again at once
        after = await start(tmp_path, FakeCluster(), settle_seconds=600.0)  # Ray came back without launchers
        watch = after.fleet.WatchFleet(pb.WatchFleetRequest())
        told = asyncio.ensure_future(watch.read())
        await asyncio.sleep(0.6)
        assert not told.done()
        assert not after.cluster.launched
        worker.fleet = after.address
        assert states(await told) == {worker_id: "READY"}
        await asyncio.sleep(0.6)
        assert not after.cluster.launched
        await stop(after)


async def test_a_returning_scheduler_has_not_heard_a_worker_that_does_not_say_how_it_is(tmp_path: Path) -> None:
    before = await start(tmp_path)
    async with FakeWorker("w-1", fleet=before.address, deployment="d"):
        await remembered(before, "w-1")
    await stop(before)
    after = await start(tmp_path, FakeCluster(), settle_seconds=600.0)
    told = asyncio.ensure_future(after.fleet.WatchFleet(pb.WatchFleetRequest()).read())
    worker = after.fleet.Register()
    info = pb.WorkerInfo(worker_id="w-1", deployment="d", address="127.0.0.1:9")
    await worker.write(pb.RegisterRequest(info=info))
    await worker.read()
    await asyncio.sleep(0.6)  # more than the scheduler's step
    assert not told.done()
    await worker.write(pb.RegisterRequest(status=pb.WorkerStatus(state=pb.WORKER_STATE_READY)))
    assert states(await told) == {"w-1": "READY"}
    await stop(after)


async def test_a_returning_scheduler_waits_for_the_dead_no_longer_than_the_settle_time(tmp_path: Path) -> None:
    before = await start(tmp_path)
    await before.fleet.Deploy(pb.DeployRequest(deployment=WISH))
    async with FakeWorker("w-1", fleet=before.address, deployment="d"):
        await remembered(before, "w-1")
    await stop(before)
    after = await start(tmp_path, FakeCluster(), settle_seconds=0.3)
    await after.until(lambda s: s.workers)
    assert len(after.cluster.launched) == 1
    await stop(after)


async def test_shutdown_stops_workers_then_launchers(tmp_path: Path) -> None:
    one = await start(tmp_path)
    await one.fleet.Deploy(pb.DeployRequest(deployment=WISH))
    await one.until(lambda s: s.workers)
    worker_id = one.cluster.launched[0].worker_id
    await one.channel.close(None)
    await one.scheduler.shutdown(grace=2.5)
    assert one.cluster.stopped == [(worker_id, 2.5)]
    assert one.cluster.ended == [(worker_id, True)]

"""The Fleet service on a real port, with the controller on a cluster without Ray."""

import asyncio
from hashlib import sha256
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tests.support.fake_cluster import FakeCluster
from tests.support.fake_worker import FakeWorker
from tests.support.running_scheduler import Running, refusal, start, states, stop

from polyfleet.convert.assets import asset_chunks
from polyfleet.process.within import Within
from polyfleet.scheduler.config import fleet_id
from polyfleet.scheduler.deployments import deployment_calls
from polyfleet.v1 import fleet_pb2 as pb

WISH = pb.ModelDeployment(name="d", source="/m.gguf", workers=1)


async def until_health(running: Running, wanted: int) -> None:
    health = health_pb2_grpc.HealthStub(running.channel)
    for service in ("", "polyfleet.v1.Fleet"):
        request = health_pb2.HealthCheckRequest(service=service)
        while (await health.Check(request)).status != wanted:
            await asyncio.sleep(0.01)


async def test_health_is_serving(running: Running) -> None:
    await until_health(running, health_pb2.HealthCheckResponse.SERVING)


async def test_a_cluster_that_fails_at_the_start_is_asked_again_and_nothing_serves_before(tmp_path: Path) -> None:
    cluster = FakeCluster()
    cluster.away = True
    running = await start(tmp_path, cluster, settle_seconds=0.0)
    try:
        await asyncio.sleep(0.1)
        await until_health(running, health_pb2.HealthCheckResponse.NOT_SERVING)
        cluster.away = False
        await running.fleet.Deploy(pb.DeployRequest(deployment=WISH))  # which waits until it can be followed
        await until_health(running, health_pb2.HealthCheckResponse.SERVING)
        while not cluster.launched:
            await asyncio.sleep(0.01)
    finally:
        await stop(running)


async def test_a_worker_registers_gives_its_assets_once_and_gateways_get_them(running: Running) -> None:
    assets = b"tokenizer" * 300_000  # 2.7 MB: three chunks
    async with FakeWorker("w-1", fleet=running.address, assets=assets) as first:
        await running.until(lambda s: states(s) == {"w-1": "READY"})
        with Within(60):
            assert await tokenizer(running, sha256(assets).hexdigest()) == assets
        assert first.registrations == 1
        async with FakeWorker("w-2", fleet=running.address, assets=assets):
            snapshot = await running.until(lambda s: states(s) == {"w-1": "READY", "w-2": "READY"})
    assert {w.info.model.name for w in snapshot.workers} == {"fake"}


async def tokenizer(running: Running, digest: str) -> bytes:
    """The assets, once they have come: a worker may be known to be ready while its chunks are under way."""
    while True:
        try:
            call = running.fleet.GetTokenizer(pb.GetTokenizerRequest(hash=digest))
            return b"".join([chunk.data async for chunk in call])
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.NOT_FOUND:
                raise
        await asyncio.sleep(0.01)


async def test_an_unknown_tokenizer_is_not_found(running: Running) -> None:
    error = await refusal(running.fleet.GetTokenizer(pb.GetTokenizerRequest(hash="00")).read())
    assert (error.code(), error.details()) == (
        grpc.StatusCode.NOT_FOUND,
        "There are no tokenizer assets with hash '00'.",
    )


async def test_forged_assets_end_the_registration(running: Running) -> None:
    digest = sha256(b"good").hexdigest()
    info = pb.WorkerInfo(worker_id="w-1", model=pb.ModelInfo(tokenizer_hash=digest))
    call = running.fleet.Register()
    await call.write(pb.RegisterRequest(info=info))
    assert (await call.read()).want_asset == digest
    await call.write(pb.RegisterRequest(asset=pb.AssetChunk(hash=digest, total_bytes=4, data=b"evil")))
    error = await refusal(call.read())
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert "asset.data: has sha256" in error.details()


@pytest.mark.parametrize(
    "first",
    [
        pb.RegisterRequest(status=pb.WorkerStatus()),
        pb.RegisterRequest(info=pb.WorkerInfo(worker_id="")),
        pb.RegisterRequest(info=pb.WorkerInfo(worker_id="a b")),
    ],
)
async def test_a_registration_without_identity_is_refused(running: Running, first: pb.RegisterRequest) -> None:
    call = running.fleet.Register()
    await call.write(first)
    assert (await refusal(call.read())).code() == grpc.StatusCode.INVALID_ARGUMENT
    assert not (await running.snapshot()).workers


async def test_a_worker_of_another_state_folder_is_refused(running: Running, tmp_path: Path) -> None:
    call = running.fleet.Register()
    await call.write(pb.RegisterRequest(info=pb.WorkerInfo(worker_id="w-1", fleet_id=fleet_id(tmp_path / "other"))))
    error = await refusal(call.read())
    sentence = "Worker w-1 belongs to the scheduler of another state folder."
    assert (error.code(), error.details()) == (grpc.StatusCode.FAILED_PRECONDITION, sentence)
    assert not (await running.snapshot()).workers

    own = running.fleet.Register()
    await own.write(pb.RegisterRequest(info=pb.WorkerInfo(worker_id="w-1", fleet_id=fleet_id(tmp_path))))
    await running.until(lambda snapshot: [each.info.worker_id for each in snapshot.workers] == ["w-1"])
    own.cancel()


async def test_watchers_get_the_fleet_at_once_its_changes_and_a_heartbeat(running: Running) -> None:
    watch = running.fleet.WatchFleet(pb.WatchFleetRequest(gateway_id="g"))
    first = await watch.read()
    assert not first.workers
    async with FakeWorker("w-1", fleet=running.address) as worker:
        while states(snapshot := await watch.read()) != {"w-1": "READY"}:
            pass
        assert snapshot.scheduler_epoch == first.scheduler_epoch == running.scheduler.epoch
        again = await watch.read()  # nothing changes: a heartbeat, the same version
        assert again.version == snapshot.version
        worker.set_state(pb.WORKER_STATE_UNHEALTHY, "canary failed")
        changed = await watch.read()
    async with FakeWorker("w-2", fleet=running.address) as other:
        await running.until(lambda s: states(s).get("w-2") == "READY")
        watch = running.fleet.WatchFleet(pb.WatchFleetRequest(gateway_id="g", partial=True))
        assert (whole := await watch.read()).workers
        assert (states(whole)["w-2"], whole.partial) == ("READY", False)
        other.set_state(pb.WORKER_STATE_UNHEALTHY, "canary failed")
        while states(part := await watch.read()) != {"w-2": "UNHEALTHY"}:  # and nothing of the other one
            assert part.partial
            assert part.workers == [] or "w-1" in states(part)  # which is lost meanwhile
    assert states(changed) == {"w-1": "UNHEALTHY"}
    assert changed.workers[0].status.reason == "canary failed"
    assert changed.version > snapshot.version


async def test_a_silent_worker_is_lost(running: Running) -> None:
    async with FakeWorker("w-1", fleet=running.address) as worker:
        await running.until(lambda s: states(s) == {"w-1": "READY"})
        await worker.kill()
        await running.until(lambda s: states(s) == {"w-1": "LOST"})


async def test_a_worker_without_launcher_is_drained_by_rpc(running: Running) -> None:
    async with FakeWorker("w-1", fleet=running.address):
        await running.until(lambda s: states(s) == {"w-1": "READY"})
        await running.fleet.Drain(pb.DrainRequest(worker_id="w-1"))
        await running.until(lambda s: states(s) == {"w-1": "DRAINING"})


async def test_nothing_happens_while_the_cluster_is_away_and_who_asks_is_told(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = pb.ModelDeployment(name="other", source="/m.gguf", workers=1)
    await running.fleet.Deploy(pb.DeployRequest(deployment=WISH))
    await running.until(lambda s: len(running.cluster.launched) == 1)
    monkeypatch.setattr(deployment_calls, "PATIENCE_SECONDS", 0.1)
    running.cluster.away = True
    async with FakeWorker("w-1", fleet=running.address):
        await running.until(lambda s: states(s).get("w-1") == "READY")
        await asyncio.sleep(2.1)  # the nodes are asked for again
        for call, request in (
            (running.fleet.Deploy, pb.DeployRequest(deployment=other)),
            (running.fleet.Undeploy, pb.UndeployRequest(name="d")),
            (running.fleet.Drain, pb.DrainRequest(worker_id=running.cluster.launched[0].worker_id)),
        ):
            error = await refusal(call(request))
            assert error.code() is grpc.StatusCode.UNAVAILABLE
            assert error.details().startswith("Ray did not answer: it is away: nothing was changed")
        assert [each.name for each in (await running.snapshot()).deployments] == ["d"]
        assert len(running.cluster.launched) == 1
        running.cluster.away = False
        await running.until(lambda s: running.cluster.known)
    monkeypatch.setattr(deployment_calls, "PATIENCE_SECONDS", 60.0)
    await running.fleet.Deploy(pb.DeployRequest(deployment=other))
    await running.until(lambda s: len(running.cluster.launched) == 2)


async def test_a_full_disk_is_said_to_who_deploys_and_tokenizers_come_all_the_same(running: Running) -> None:
    database = running.scheduler._store._db
    (pages,) = database.execute("PRAGMA page_count").fetchone()
    database.execute(f"PRAGMA max_page_count = {pages}")
    wish = pb.ModelDeployment(name="large", source="/m" * 100_000)
    refused = await refusal(running.fleet.Deploy(pb.DeployRequest(deployment=wish)))
    assert refused.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "is full: make room there, then try again." in refused.details()
    assets = b"tokenizer" * 30_000
    model = pb.ModelInfo(name="m", tokenizer_hash=sha256(assets).hexdigest())
    worker = running.fleet.Register()
    await worker.write(pb.RegisterRequest(info=pb.WorkerInfo(worker_id="w-1", model=model)))
    assert (await worker.read()).want_asset == model.tokenizer_hash
    for chunk in asset_chunks(model.tokenizer_hash, assets):
        await worker.write(pb.RegisterRequest(asset=chunk))
    while not running.scheduler._store.has_asset(model.tokenizer_hash):
        await asyncio.sleep(0.02)
    found = [
        chunk.data async for chunk in running.fleet.GetTokenizer(pb.GetTokenizerRequest(hash=model.tokenizer_hash))
    ]
    assert b"".join(found) == assets
    worker.cancel()

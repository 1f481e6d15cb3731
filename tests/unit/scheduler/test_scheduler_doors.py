"""What strangers and liars can do to a Fleet on a real port: nothing that the others would notice."""

import asyncio
from collections.abc import AsyncIterator, Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import grpc
import pytest
from tests.support.fake_worker import FakeWorker
from tests.support.running_scheduler import Running, start, states, stop

from polyfleet.scheduler import fleet_service
from polyfleet.v1 import fleet_pb2 as pb

TOKEN = (("authorization", "Bearer right"),)
WISH = pb.ModelDeployment(name="d", source="/m.gguf", workers=1)
UNPROVEN = ("UNSPECIFIED", "STARTING", "LOADING", "UNHEALTHY", "DRAINING")


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    """Without a token."""
    one = await start(tmp_path)
    yield one
    await stop(one)


@pytest.fixture
async def guarded(tmp_path: Path) -> AsyncIterator[Running]:
    """With one, on loopback."""
    (tmp_path / "token").write_text("right\n")
    one = await start(tmp_path, fleet_token_file=str(tmp_path / "token"))
    yield one
    await stop(one)


def code_of(error: Any) -> grpc.StatusCode:
    code = error.value.code()
    assert isinstance(code, grpc.StatusCode)
    return code


async def first(fleet: Any, *requests: pb.RegisterRequest, metadata: Any = ()) -> pb.RegisterResponse:
    """The first answer to a registration."""
    call = fleet.Register(metadata=metadata)
    for request in requests:
        await call.write(request)
    answer = await call.read()
    assert isinstance(answer, pb.RegisterResponse)
    return answer


@pytest.mark.parametrize("metadata", [(), (("authorization", "Bearer wrong"),)])
async def test_without_the_token_nobody_does_anything_on_loopback_either(guarded: Running, metadata: Any) -> None:
    fleet = guarded.fleet
    info = pb.WorkerInfo(worker_id="w-rogue", deployment="d", model=pb.ModelInfo(name="d"))
    calls: dict[str, Callable[[], Any]] = {
        "Register": lambda: first(fleet, pb.RegisterRequest(info=info), metadata=metadata),
        "WatchFleet": lambda: fleet.WatchFleet(pb.WatchFleetRequest(), metadata=metadata).read(),
        "GetTokenizer": lambda: fleet.GetTokenizer(pb.GetTokenizerRequest(hash="0"), metadata=metadata).read(),
        "ListWorkers": lambda: fleet.ListWorkers(pb.ListWorkersRequest(), metadata=metadata),
        "Drain": lambda: fleet.Drain(pb.DrainRequest(worker_id="w-1"), metadata=metadata),
        "Deploy": lambda: fleet.Deploy(pb.DeployRequest(deployment=WISH), metadata=metadata),
        "UndoRollout": lambda: fleet.UndoRollout(pb.UndoRolloutRequest(name="d"), metadata=metadata),
        "Undeploy": lambda: fleet.Undeploy(pb.UndeployRequest(name="d"), metadata=metadata),
    }
    async with FakeWorker("w-1", fleet=guarded.address, fleet_token="right"):
        while states(await fleet.ListWorkers(pb.ListWorkersRequest(), metadata=TOKEN)) != {"w-1": "READY"}:
            await asyncio.sleep(0.02)
        for name, call in calls.items():
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await call()
            assert code_of(refused) is grpc.StatusCode.UNAUTHENTICATED, name
        snapshot = await fleet.ListWorkers(pb.ListWorkersRequest(), metadata=TOKEN)
        assert states(snapshot) == {"w-1": "READY"}
        assert not snapshot.deployments


async def test_what_is_not_ready_takes_no_ready_worker_down(running: Running) -> None:
    await running.fleet.Deploy(pb.DeployRequest(deployment=WISH))
    await running.until(lambda s: s.workers)
    launched = running.cluster.launched[0].worker_id
    assets = b"right"
    async with FakeWorker(launched, "m", fleet=running.address, deployment="d", assets=assets) as worker:
        await running.until(lambda s: states(s) == {launched: "READY"})
        calls = []
        for state in UNPROVEN:
            model = pb.ModelInfo(name="m", context_length=7, tokenizer_hash=sha256(state.encode()).hexdigest())
            info = pb.WorkerInfo(worker_id=f"w-{state}", address="127.0.0.1:9", deployment="d", model=model)
            calls.append(running.fleet.Register())
            await calls[-1].write(pb.RegisterRequest(info=info))
            status = pb.WorkerStatus(state=pb.WorkerState.Value(f"WORKER_STATE_{state}"))
            await calls[-1].write(pb.RegisterRequest(status=status))
        snapshot = await running.until(lambda s: len(s.workers) == 1 + len(UNPROVEN))
        await running.scheduler._controller.tick()
        assert {w.info.worker_id: w.info.model.context_length for w in snapshot.workers if w.info.model.name} == {
            launched: worker.context_length
        }
        assert (running.cluster.stopped, len(running.cluster.launched)) == ([], 1)
        assert states(await running.snapshot())[launched] == "READY"
        call = running.fleet.GetTokenizer(pb.GetTokenizerRequest(hash=sha256(assets).hexdigest()))
        assert (await call.read()).data == assets
        for call in calls:
            call.cancel()


async def test_a_stolen_id_is_refused_and_the_owner_stays(running: Running) -> None:
    async with FakeWorker("w-1", fleet=running.address) as worker:
        await running.until(lambda s: states(s) == {"w-1": "READY"})
        thief = worker.info()
        thief.address = "127.0.0.1:9"
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await first(running.fleet, pb.RegisterRequest(info=thief))
        assert code_of(refused) is grpc.StatusCode.ALREADY_EXISTS
        assert refused.value.details() == "The worker id 'w-1' is taken: process 0 on localhost reports under it."
        assert [w.info.address for w in (await running.snapshot()).workers] == [worker.address]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"address": "unix:/run/docker.sock"}, "info.address: must be host:port"),
        ({"address": "dns:///example.org:80"}, "info.address: must be host:port"),
        ({"address": "127.0.0.1"}, "info.address: must be host:port"),
        ({"address": "127.0.0.1:99999"}, "info.address: must be host:port"),
        ({"address": "192.0.2.1:80"}, "info.address: must be on loopback where no fleet token is configured"),
        ({"metrics_address": "192.0.2.1:80"}, "info.metrics_address: must be on loopback"),
        ({"deployment": "a\nb"}, "info: must have printable names"),
        ({"device_name": "x" * 20_000}, "info: must be at most 16384 bytes"),
        ({"model": pb.ModelInfo(end_token_ids=range(20_000))}, "info: must be at most 16384 bytes"),
        ({"model": pb.ModelInfo(tokenizer_hash="../../etc/passwd")}, "info.model.tokenizer_hash: must be a sha256"),
    ],
)
async def test_what_no_worker_says_is_refused_by_name(running: Running, changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await first(running.fleet, pb.RegisterRequest(info=pb.WorkerInfo(worker_id="w-1", **changes)))
    assert code_of(refused) is grpc.StatusCode.INVALID_ARGUMENT
    assert str(refused.value.details()).startswith(problem)
    assert not (await running.snapshot()).workers


async def test_workers_elsewhere_may_register_where_there_is_a_token(guarded: Running) -> None:
    info = pb.WorkerInfo(worker_id="w-1", address="worker-7.pods.example:50061", metrics_address="[2001:db8::7]:9100")
    assert (await first(guarded.fleet, pb.RegisterRequest(info=info), metadata=TOKEN)).scheduler_epoch


async def test_a_huge_status_is_refused(running: Running) -> None:
    call = running.fleet.Register()
    await call.write(pb.RegisterRequest(info=pb.WorkerInfo(worker_id="w-1")))
    await call.read()
    await call.write(pb.RegisterRequest(status=pb.WorkerStatus(reason="x" * 100_000)))
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await call.read()
    assert str(refused.value.details()).startswith("status: must be at most 16384 bytes")


async def test_a_stream_that_says_nothing_is_ended(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_service, "FIRST_SECONDS", 0.05)
    monkeypatch.setattr(fleet_service, "SILENT_SECONDS", 0.05)
    for requests in ([], [pb.RegisterRequest(info=pb.WorkerInfo(worker_id="w-1"))]):
        call = running.fleet.Register()
        for request in requests:
            await call.write(request)
            await call.read()
        with pytest.raises(grpc.aio.AioRpcError) as ended:
            await call.read()
        assert code_of(ended) is grpc.StatusCode.DEADLINE_EXCEEDED


async def test_registrations_are_bounded(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_service, "MAX_STREAMS", 1)
    async with FakeWorker("w-1", fleet=running.address):
        await running.until(lambda s: states(s) == {"w-1": "READY"})
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await first(running.fleet, pb.RegisterRequest(info=pb.WorkerInfo(worker_id="w-2")))
        assert code_of(refused) is grpc.StatusCode.RESOURCE_EXHAUSTED
    monkeypatch.setattr(fleet_service, "MAX_STREAMS", 2)
    assert (await first(running.fleet, pb.RegisterRequest(info=pb.WorkerInfo(worker_id="w-2")))).scheduler_epoch


async def test_one_tokenizer_is_asked_of_one_worker_and_of_the_next_when_that_one_fails(running: Running) -> None:
    assets = b"tokenizer"
    model = pb.ModelInfo(name="m", tokenizer_hash=sha256(assets).hexdigest())
    slow = running.fleet.Register()
    await slow.write(pb.RegisterRequest(info=pb.WorkerInfo(worker_id="w-slow", model=model)))
    assert (await slow.read()).want_asset == model.tokenizer_hash
    second = running.fleet.Register()
    await second.write(pb.RegisterRequest(info=pb.WorkerInfo(worker_id="w-2", model=model)))
    assert (await second.read()).want_asset == ""
    slow.cancel()
    asking = asyncio.create_task(second.read())
    while not asking.done():
        await second.write(pb.RegisterRequest(status=pb.WorkerStatus(state=pb.WORKER_STATE_READY)))
        await asyncio.sleep(0.02)
    assert asking.result().want_asset == model.tokenizer_hash
    chunk = pb.AssetChunk(hash=model.tokenizer_hash, total_bytes=len(assets), data=assets)
    await second.write(pb.RegisterRequest(asset=chunk))
    while not running.scheduler._store.has_asset(model.tokenizer_hash):
        await asyncio.sleep(0.02)
    second.cancel()

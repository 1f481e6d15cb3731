"""A scheduler whose callers have keys of their own: what each may do, on a real port."""

from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import grpc
import pytest
from tests.support.running_scheduler import Running, start, stop
from tests.unit.process.test_process_fleet_keys import bearer, write
from tests.unit.scheduler.test_scheduler_doors import WISH, code_of, first

from polyfleet.process import keys as process_keys
from polyfleet.v1 import fleet_pb2 as pb

ROLES = {"any": "worker", "gw": "gateway", "ops": "operator"}


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    small = {"id": "small", "role": "worker", "deployments": ["small", "other"]}
    others = {"id": "any", "role": "worker"}, {"id": "gw", "role": "gateway"}
    fleet_keys = write(tmp_path / "fleet.yaml", small, *others)
    callers = write(tmp_path / "callers.yaml", {"id": "ops", "role": "operator"}, {"id": "team"})
    one = await start(tmp_path, fleet_keys_file=str(fleet_keys), keys_file=str(callers))
    yield one
    await stop(one)


def register(running: Running, key: str, deployment: str, worker_id: str = "w-1") -> Any:
    info = pb.WorkerInfo(worker_id=worker_id, deployment=deployment, address="127.0.0.1:9")
    return first(running.fleet, pb.RegisterRequest(info=info), metadata=bearer(key))


async def test_a_workers_key_registers_and_deploys_nothing(running: Running) -> None:
    assert (await register(running, "any", "x")).scheduler_epoch
    for call in (
        running.fleet.Deploy(pb.DeployRequest(deployment=WISH), metadata=bearer("any")),
        running.fleet.Drain(pb.DrainRequest(worker_id="w-1"), metadata=bearer("any")),
        running.fleet.ListWorkers(pb.ListWorkersRequest(), metadata=bearer("any")),
        running.fleet.Deploy(pb.DeployRequest(deployment=WISH), metadata=bearer("gw")),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call
        assert code_of(refused) is grpc.StatusCode.PERMISSION_DENIED
    for key in ("team", "unknown"):  # a caller of models is none of the fleet
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await running.fleet.Deploy(pb.DeployRequest(deployment=WISH), metadata=bearer(key))
        assert code_of(refused) is grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.parametrize("changed", [{"hash": "0" * 64}, {"expires": "2020-01-01T00:00:00Z"}, None])
async def test_keys_that_were_good_once_open_nothing(
    running: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: Mapping[str, object] | None
) -> None:
    monkeypatch.setattr(process_keys, "RELOAD_SECONDS", 0.0)

    def asked() -> Mapping[str, Any]:
        return {
            "any": register(running, "any", "x"),
            "gw": anext(aiter(running.fleet.WatchFleet(pb.WatchFleetRequest(), metadata=bearer("gw")))),
            "ops": running.fleet.ListWorkers(pb.ListWorkersRequest(), metadata=bearer("ops")),
        }

    for call in asked().values():
        assert await call
    again = [] if changed is None else [{"id": each, "role": role, **changed} for each, role in ROLES.items()]
    write(tmp_path / "fleet.yaml", *again[:2])
    write(tmp_path / "callers.yaml", {"id": "team"}, *again[2:])
    for name, call in asked().items():
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call
        assert code_of(refused) is grpc.StatusCode.UNAUTHENTICATED, name


async def test_a_key_for_some_deployments_registers_with_those_alone(running: Running) -> None:
    assert (await register(running, "small", "other")).scheduler_epoch
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await register(running, "small", "large", "w-2")
    assert code_of(refused) is grpc.StatusCode.FAILED_PRECONDITION
    assert refused.value.details() == "The key small is for workers of small, other, not of 'large'."
    with pytest.raises(grpc.aio.AioRpcError):
        await register(running, "gw", "small", "w-3")


@pytest.mark.parametrize("field", ["model", "intended_model"])
async def test_such_a_key_registers_with_no_model_of_others(running: Running, field: str) -> None:
    running.scheduler._registry.set_deployments([pb.ModelDeployment(name="small", model_name="meta/small")])
    for deployment, model, refused in (
        *(("small", "meta/small", ""), ("small", "large", "of small, which serves meta/small, not 'large'.")),
        *(("other", "other", ""), ("other", "meta/small", "of other, which serves other, not 'meta/small'.")),
    ):
        named = {"model": pb.ModelInfo(name=model)} if field == "model" else {"intended_model": model}
        info = pb.WorkerInfo(worker_id=f"w-{deployment}", deployment=deployment, address="127.0.0.1:9", **named)
        call = first(running.fleet, pb.RegisterRequest(info=info), metadata=bearer("small"))
        if refused:
            with pytest.raises(grpc.aio.AioRpcError, match=refused):
                await call
        else:
            assert (await call).scheduler_epoch


async def test_an_operators_key_of_the_gateways_file_still_operates(running: Running) -> None:
    await running.fleet.Deploy(pb.DeployRequest(deployment=WISH), metadata=bearer("ops"))
    snapshot = await running.fleet.ListWorkers(pb.ListWorkersRequest(), metadata=bearer("ops"))
    assert [each.name for each in snapshot.deployments] == ["d"]
    assert not (await running.fleet.Usage(pb.UsageRequest(), metadata=bearer("ops"))).rows

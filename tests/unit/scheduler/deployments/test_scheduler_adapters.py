"""Adapters of deployments: tried on a worker, kept as a wish, told to every worker, those of a later life included."""

import asyncio
from typing import Any

import grpc
import pytest
from tests.support.fake_worker import FakeWorker, fleet_state
from tests.support.running_scheduler import Running, refusal, states

from polyfleet.scheduler.deployments.adapters import adapter_changes
from polyfleet.scheduler.fleet.record import Record
from polyfleet.v1 import fleet_pb2 as pb

A = pb.Adapter(name="a", source="/a")
REFUSED = (
    ({"name": "x", "source": "/bad"}, "INVALID_ARGUMENT", "source: /bad: is no adapter."),
    ({"name": "a/b", "source": "/b"}, "INVALID_ARGUMENT", "adapter.name: must be 1 to 64 of"),
    ({"name": "<i>", "source": "/b"}, "INVALID_ARGUMENT", "adapter.name: must be 1 to 64 of"),
    ({"name": "b", "source": " "}, "INVALID_ARGUMENT", "adapter.source: must be the path of a PEFT folder."),
    ({"name": "a", "source": "/b"}, "ALREADY_EXISTS", "Deployment d has an adapter a: drop it first"),
    ({"name": "m", "source": "/b"}, "ALREADY_EXISTS", "m is the name of a model."),
    ({"name": "b", "source": "/b", "deployment": "e"}, "NOT_FOUND", "There is no deployment 'e'; there are: d."),
)
WISH = pb.ModelDeployment(name="d", model_name="m", source="/m.gguf", workers=2)


def record(**info: Any) -> Record:
    ready = pb.WorkerStatus(state=fleet_state("READY"))
    return Record(pb.WorkerInfo(worker_id="w", address="h:1", deployment="d", **info), ready, stream=1)


def test_who_has_to_be_told() -> None:
    wish = pb.ModelDeployment(name="d", adapters=[A])
    loaded = pb.Adapter(name="a", source="/a", fingerprint="f", rank=8)
    failed = pb.Adapter(name="a", source="/a", problem="is none")
    moved = pb.Adapter(name="a", source="/elsewhere", fingerprint="f")

    def told(*adapters: pb.Adapter, **more: Any) -> bool:
        return bool(adapter_changes([wish], [record(model=pb.ModelInfo(name="m", adapters=adapters), **more)]))

    assert told()
    assert not told(loaded)
    assert not told(failed)  # it knows
    assert told(moved)
    assert told(loaded, pb.Adapter(name="b", source="/b"))
    assert not told(own_model=True)
    assert not adapter_changes([], [record()])
    assert adapter_changes([wish], [record()])[0].adapters == (A,)
    loading = record()
    loading.status.state = fleet_state("LOADING")
    assert not adapter_changes([wish], [loading])


async def add(running: Running, **request: str) -> pb.Adapter:
    answer = await running.fleet.AddAdapter(pb.AddAdapterRequest(**request))
    adapter: pb.Adapter = answer.adapter
    return adapter


async def until(worker: FakeWorker, *names: str) -> None:
    while sorted(worker.adapters) != sorted(names):
        await asyncio.sleep(0.01)


async def test_the_life_of_adapters(running: Running) -> None:
    options: Any = {"fleet": running.address, "deployment": "d"}
    async with FakeWorker("w-1", "m", **options) as first, FakeWorker("w-2", "m", **options) as second:
        await running.until(lambda fleet: states(fleet) == {"w-1": "READY", "w-2": "READY"})
        await running.fleet.Deploy(pb.DeployRequest(deployment=WISH))
        loaded = await add(running, name="a", source="/a")
        assert (loaded.name, loaded.rank) == ("a", 8)
        await until(first, "a")
        await until(second, "a")
        for request, code, sentence in REFUSED:
            error = await refusal(add(running, **request))
            assert error.code().name == code
            assert error.details().startswith(sentence)
        await until(first, "a")  # what it could not load is forgotten
        await add(running, name="b", source="/b", deployment="d")
        await until(second, "a", "b")
        await running.fleet.Deploy(pb.DeployRequest(deployment=WISH))  # which says nothing of adapters
        first.adapters.clear()  # as a worker of a later life
        first.changed.set()
        await until(first, "a", "b")
        await running.fleet.DropAdapter(pb.DropAdapterRequest(name="a"))
        await until(first, "b")
        await until(second, "b")
        error = await refusal(running.fleet.DropAdapter(pb.DropAdapterRequest(name="a")))
        assert (error.code(), error.details()) == (
            grpc.StatusCode.NOT_FOUND,
            "Deployment d has no adapter 'a'; it has: b.",
        )
        await running.fleet.Deploy(pb.DeployRequest(deployment=pb.ModelDeployment(name="e", source="/e.gguf")))
        drop = running.fleet.DropAdapter
        for call in (add(running, name="c", source="/c"), drop(pb.DropAdapterRequest(name="c"))):
            error = await refusal(call)
            assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert error.details() == "deployment: must name one of several: d, e."
        await drop(pb.DropAdapterRequest(name="b"))  # d alone has it
        await until(first)


async def test_a_deployment_without_a_ready_worker_can_try_none(running: Running) -> None:
    await running.fleet.Deploy(pb.DeployRequest(deployment=pb.ModelDeployment(name="d", source="/m.gguf")))
    error = await refusal(add(running, name="a", source="/a"))
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert error.details().startswith("Deployment d has no ready worker that could try the adapter")


@pytest.mark.parametrize("adapters", [[A, A], [pb.Adapter(name="a b", source="/a")], [pb.Adapter(name="a")]])
async def test_wishes_with_impossible_adapters_are_refused(adapters: list[pb.Adapter], running: Running) -> None:
    wish = pb.ModelDeployment(name="d", source="/m.gguf", adapters=adapters)
    error = await refusal(running.fleet.Deploy(pb.DeployRequest(deployment=wish)))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert error.details().startswith("deployment.adapters")

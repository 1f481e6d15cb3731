"""A model is checked before it is deployed: by which worker, at which sites, and what is said where nobody can."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from click.testing import CliRunner
from tests.support.fake_looker import GIB, Looker
from tests.support.running_scheduler import Running, refusal, start, stop

from polyfleet.cli.main import cli
from polyfleet.v1 import fleet_pb2 as pb
from polyfleet.v1 import operations_pb2, worker_pb2_grpc


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    one = await start(tmp_path)
    yield one
    await stop(one)


@pytest.fixture
async def worker(running: Running) -> AsyncIterator[tuple[Looker, Any]]:
    """A ready worker with two equal cards, one larger, and one that tells nothing; and its stream."""
    looker, server = Looker(), grpc.aio.server()
    worker_pb2_grpc.add_WorkerServicer_to_server(looker, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    sizes = (("A", 8 * GIB), ("A", 8 * GIB), ("A", 16 * GIB), ("B", None))
    devices = [
        operations_pb2.DeviceState(accelerator="cuda", index=n, name=name, memory_total_bytes=size)
        for n, (name, size) in enumerate(sizes)
    ]
    stream = await registered(running, "w-1", "node-1", f"127.0.0.1:{port}", *devices)
    while len((await running.fleet.ListDevices(operations_pb2.ListDevicesRequest())).devices) < len(devices):
        await asyncio.sleep(0.01)
    yield looker, stream
    await server.stop(0)


async def registered(running: Running, worker_id: str, host: str, address: str, *devices: Any) -> Any:
    stream = running.fleet.Register()
    info = pb.WorkerInfo(worker_id=worker_id, address=address, host=host, accelerator="cuda")
    await stream.write(pb.RegisterRequest(info=info))
    await stream.read()
    await stream.write(pb.RegisterRequest(status=pb.WorkerStatus(state=pb.WORKER_STATE_STARTING)))
    await stream.write(pb.RegisterRequest(devices=operations_pb2.DeviceReport(devices=devices)))
    return stream


async def test_a_worker_looks_at_every_kind_of_device(running: Running, worker: tuple[Looker, Any]) -> None:
    asked = pb.CheckModelRequest(source="/m", options=pb.WorkerOptions(context_length=32))
    answer = await running.fleet.CheckModel(asked)
    assert answer.worker_id == "w-1"
    assert [each["device"] for each in json.loads(answer.inspection)["fits"]] == ["cuda A", "cuda A"]
    (seen,) = worker[0].asked
    assert [(each.accelerator, each.memory_bytes) for each in seen.sites] == [("cuda", 8 * GIB), ("cuda", 16 * GIB)]
    assert (seen.source, seen.options.context_length) == ("/m", 32)
    await running.fleet.CheckModel(pb.CheckModelRequest(source="/m", accelerators=["cpu"]))
    assert not worker[0].asked[-1].sites


async def test_why_a_model_can_not_be_checked(running: Running, worker: tuple[Looker, Any]) -> None:
    looker, unfit = worker[0], pb.WorkerOptions(context_length=2**31)
    missing = "The model /m: there is no such file or folder."
    looker.problem = (grpc.StatusCode.FAILED_PRECONDITION, missing)
    error = await refusal(running.fleet.CheckModel(pb.CheckModelRequest(source="/m")))
    assert (error.code(), error.details()) == (grpc.StatusCode.FAILED_PRECONDITION, missing)
    looker.problem = (grpc.StatusCode.RESOURCE_EXHAUSTED, "busy")
    error = await refusal(running.fleet.CheckModel(pb.CheckModelRequest(source="/m")))
    assert (error.code(), "ask again" in str(error.details())) == (grpc.StatusCode.UNAVAILABLE, True)
    looker.problem = (grpc.StatusCode.UNIMPLEMENTED, "older")
    error = await refusal(running.fleet.CheckModel(pb.CheckModelRequest(source="/m")))
    assert (error.code(), "No worker is there" in str(error.details())) == (grpc.StatusCode.UNAVAILABLE, True)
    for asked, field in (
        (pb.CheckModelRequest(source=" "), "source"),
        (pb.CheckModelRequest(source="/m", options=unfit), "options.context_length"),
    ):
        error = await refusal(running.fleet.CheckModel(asked))
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert str(error.details()).startswith(f"{field}: ")


async def test_another_host_may_see_what_one_does_not(running: Running, worker: tuple[Looker, Any]) -> None:
    blind, server = Looker(), grpc.aio.server()
    blind.problem = (grpc.StatusCode.FAILED_PRECONDITION, "The model /m: there is no such file or folder.")
    worker_pb2_grpc.add_WorkerServicer_to_server(blind, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    await registered(running, "w-0", "node-0", f"127.0.0.1:{port}")
    while len((await running.snapshot()).workers) < 2:
        await asyncio.sleep(0.01)
    assert (await running.fleet.CheckModel(pb.CheckModelRequest(source="/m"))).worker_id == "w-1"
    assert len(blind.asked) == 1
    worker[0].problem = (grpc.StatusCode.FAILED_PRECONDITION, "It is no model.")
    error = await refusal(running.fleet.CheckModel(pb.CheckModelRequest(source="/m")))
    told = "On node-0: The model /m: there is no such file or folder. On node-1: It is no model."
    assert error.details() == told
    await server.stop(0)


async def test_the_command_checks_and_deploys_nothing(running: Running, worker: tuple[Looker, Any]) -> None:
    arguments = ["deploy", "m", "/m", "--check", "--fleet", running.address]
    done = await asyncio.to_thread(CliRunner().invoke, cli, arguments)
    assert done.exit_code == 0, done.output
    assert "m: Llama, 1,000 parameters, context 64" in done.output
    assert "cuda A, 8.0 GiB: captured, weights 1.00 GiB, KV 256 bytes a token" in done.output
    worker[0].fits = False
    done = await asyncio.to_thread(CliRunner().invoke, cli, [*arguments, "--json"])
    found = json.loads(done.stdout)
    assert (done.exit_code, found["worker"], found["fits"][0]["problem"]) == (1, "w-1", "no room")
    assert not (await running.snapshot()).deployments

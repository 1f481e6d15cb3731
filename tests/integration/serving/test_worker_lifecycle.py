"""Loading, unloading, draining, dying: the real worker process with the fake engine."""

import asyncio
import contextlib
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tests.support import fake_engine
from tests.support.fake_tokens import fake_tokens
from tests.support.running_worker import RunningWorker
from tests.support.session_client import OWN_CONNECTION, tokens_of

from polyfleet.v1 import fleet_pb2 as fleet
from polyfleet.v1 import worker_pb2 as pb
from polyfleet.v1 import worker_pb2_grpc

UNAVAILABLE = grpc.StatusCode.UNAVAILABLE.value[0]
SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


@contextlib.asynccontextmanager
async def stub_of(worker: RunningWorker) -> AsyncIterator[worker_pb2_grpc.WorkerStub]:
    async with grpc.aio.insecure_channel(worker.address, options=OWN_CONNECTION) as channel:
        yield worker_pb2_grpc.WorkerStub(channel)


async def health_of(worker: RunningWorker, service: str = "polyfleet.v1.Worker") -> int:
    async with grpc.aio.insecure_channel(worker.address, options=OWN_CONNECTION) as channel:
        answer = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service=service))
        return int(answer.status)


def start(name: str, *prompt: int, max_tokens: int = 50_000) -> pb.StartSequence:
    return pb.StartSequence(sequence_id=name, prompt_ids=prompt, max_tokens=max_tokens)


async def read_all(call: Any) -> list[Any]:
    messages = []
    while (message := await call.read()) is not grpc.aio.EOF:  # type: ignore[attr-defined]
        messages.append(message)
    return messages


def gone(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


async def test_load_reports_progress_and_unload_frees_the_engine_process(tmp_path: Path) -> None:
    async with RunningWorker(tmp_path) as worker, stub_of(worker) as stub:
        assert await health_of(worker) == NOT_SERVING
        request = pb.LoadRequest(deployment="d", model_name="m", source="fake:load_seconds=0.2")
        request.options.context_length = 77
        steps = [step async for step in stub.Load(request)]
        progress = [step.progress for step in steps]
        assert progress == sorted(progress)
        assert len(steps) == 12  # ten of the weights, the canary's, and the last one
        model = steps[-1].model
        assert (model.name, model.context_length, model.vocabulary_size) == ("m", 77, 1000)
        assert await health_of(worker) == SERVING
        info = (await worker.status()).info
        assert (info.model, info.deployment, info.accelerator) == (model, "d", "cpu")

        with pytest.raises(grpc.aio.AioRpcError, match="serves a model already") as refused:
            _ = [step async for step in stub.Load(request)]
        assert refused.value.code() == grpc.StatusCode.FAILED_PRECONDITION

        engine = worker.engine()
        async with worker.session() as session:
            await session.start(start("a", 1))
            await stub.Unload(pb.UnloadRequest())
            assert (await session.run_to_end())["a"][-1].error.code == UNAVAILABLE
        assert gone(engine)
        status = await worker.status()
        assert status.status.state == fleet.WORKER_STATE_STARTING
        assert not status.info.HasField("model")
        assert await health_of(worker) == NOT_SERVING
        _ = [step async for step in stub.Load(request)]
        assert (await worker.status()).status.state == fleet.WORKER_STATE_READY


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("fake:unusable=1", "fake:unusable=1 is truncated: it ends in the middle of a tensor."),
        ("fake:die_loading=1", "The engine process ended with status 7 while it loaded the model."),
    ],
)
async def test_a_load_that_fails_leaves_a_worker_that_can_load_another(
    tmp_path: Path, source: str, reason: str
) -> None:
    async with RunningWorker(tmp_path) as worker, stub_of(worker) as stub:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            _ = [step async for step in stub.Load(pb.LoadRequest(model_name="m", source=source))]
        assert (refused.value.code(), refused.value.details()) == (grpc.StatusCode.FAILED_PRECONDITION, reason)
        status = (await worker.status()).status
        assert (status.state, status.reason) == (fleet.WORKER_STATE_STARTING, reason)
        _ = [step async for step in stub.Load(pb.LoadRequest(model_name="m", source="fake:"))]
        assert (await worker.status()).status.reason == ""


async def test_loading_goes_on_when_its_caller_leaves_and_ends_with_unload(tmp_path: Path) -> None:
    async with RunningWorker(tmp_path) as worker, stub_of(worker) as stub:
        call = stub.Load(pb.LoadRequest(model_name="m", source="fake:load_seconds=0.5"))
        await call.read()
        call.cancel()
        await worker.until_state(fleet.WORKER_STATE_READY)
        await stub.Unload(pb.UnloadRequest())
        slow = stub.Load(pb.LoadRequest(model_name="m", source="fake:load_seconds=600"))
        await slow.read()
        engine = worker.engine()
        await stub.Unload(pb.UnloadRequest())
        with pytest.raises(grpc.aio.AioRpcError, match="unload"):
            await read_all(slow)
        assert gone(engine)
        assert (await worker.status()).status.state == fleet.WORKER_STATE_STARTING


async def test_a_model_given_at_the_start_that_cannot_be_served_is_exit_status_3(tmp_path: Path) -> None:
    worker = RunningWorker(tmp_path, model="fake:unusable=1")
    await worker.spawn()
    assert await worker.exit_status() == 3
    assert "is truncated: it ends in the middle of a tensor." in worker.errors
    assert "Traceback" not in worker.errors
    assert not worker.lock_path.exists()


@pytest.mark.parametrize("death", ["killed", "crash", "raise"])
async def test_the_engines_death_ends_sequences_unavailable_and_the_worker_with_1(tmp_path: Path, death: str) -> None:
    async with RunningWorker(tmp_path, model="fake:step_seconds=0.01") as worker:
        async with worker.session("g-1") as one, worker.session("g-2") as two:
            await one.start(start("a", 1))
            await two.start(start("b", 2))
            while (await two.event()).status.running_sequences != 2:
                pass
            if death == "killed":
                worker.engine().kill()
            else:
                await one.start(start("bad", fake_engine.CRASH if death == "crash" else fake_engine.BREAK))
            first, second = await asyncio.gather(one.run_to_end(1 if death == "killed" else 2), two.run_to_end())
        errors = {name: deltas[-1].error for name, deltas in {**first, **second}.items()}
        reason = "fell off the bus" if death == "raise" else "The engine process was killed by SIGKILL."
        for error in (errors["a"], errors["b"]):
            assert error.code == UNAVAILABLE
            assert reason in error.message
        assert await worker.exit_status() == 1
        assert not worker.lock_path.exists()


async def test_the_workers_death_ends_the_engine_process(tmp_path: Path) -> None:
    for model in ("fake:", "fake:load_seconds=2"):
        async with RunningWorker(tmp_path, model=model, wait_ready=model == "fake:") as worker:
            while not psutil.Process(worker.process.pid).children():
                await asyncio.sleep(0.02)
            engine = worker.engine()
            worker.signal(signal.SIGKILL)
            await worker.exit_status()
            while not gone(engine):
                await asyncio.sleep(0.02)


async def test_sigterm_finishes_what_runs_and_exits_0(tmp_path: Path) -> None:
    async with RunningWorker(tmp_path, model="fake:step_seconds=0.01") as worker, worker.session() as session:
        await session.start(start("old", 1, max_tokens=100))
        while (await session.event()).status.running_sequences != 1:
            pass
        worker.signal(signal.SIGTERM)
        while (event := await session.event()).status.state != fleet.WORKER_STATE_DRAINING:
            pass
        assert await health_of(worker) == NOT_SERVING
        assert await health_of(worker, "liveness") == SERVING
        await session.start(start("new", 2))
        seen = await session.run_to_end(2)
        assert seen["new"][-1].error.code == UNAVAILABLE
        assert tokens_of(seen["old"])[-10:] == fake_tokens([1], 100)[-10:]
        assert event.status.running_sequences == 1
        assert await session.read_until_broken() == ([], grpc.StatusCode.OK)
        assert await worker.exit_status() == 0
        assert not worker.lock_path.exists()


async def test_drain_with_exit_ends_an_idle_worker(tmp_path: Path) -> None:
    async with RunningWorker(tmp_path, model="fake:") as worker, stub_of(worker) as stub:
        await stub.Drain(pb.WorkerDrainRequest())
        assert (await worker.status()).status.state == fleet.WORKER_STATE_DRAINING
        assert worker.process.returncode is None
        await stub.Drain(pb.WorkerDrainRequest(exit=True))
        assert await worker.exit_status() == 0


async def test_a_second_signal_ends_at_once(tmp_path: Path) -> None:
    async with RunningWorker(tmp_path, model="fake:step_seconds=0.01") as worker, worker.session() as session:
        await session.start(start("endless", 1, max_tokens=10**9))
        while (await session.event()).status.running_sequences != 1:
            pass
        worker.signal(signal.SIGTERM)
        while (await session.event()).status.state != fleet.WORKER_STATE_DRAINING:
            pass
        worker.signal(signal.SIGTERM)
        assert await worker.exit_status() == 128 + signal.SIGTERM


async def test_a_terminal_that_goes_drains_however_often_it_says_so(tmp_path: Path) -> None:
    async with RunningWorker(tmp_path, model="fake:step_seconds=0.01") as worker, worker.session() as session:
        await session.start(start("running", 1, max_tokens=100))
        while (await session.event()).status.running_sequences != 1:
            pass
        worker.signal(signal.SIGHUP)
        while (await session.event()).status.state != fleet.WORKER_STATE_DRAINING:
            pass
        worker.signal(signal.SIGHUP)
        seen = await session.run_to_end()
        assert tokens_of(seen["running"])[-10:] == fake_tokens([1], 100)[-10:]
        assert await worker.exit_status() == 0
        assert not worker.lock_path.exists()


async def test_the_drain_timeout_hands_the_rest_back(tmp_path: Path) -> None:
    options = ("--drain-timeout", "0.2")
    async with RunningWorker(tmp_path, *options, model="fake:step_seconds=0.01") as worker:
        async with worker.session() as session:
            await session.start(start("endless", 1, max_tokens=10**9))
            while (await session.event()).status.running_sequences != 1:
                pass
            worker.signal(signal.SIGTERM)
            assert (await session.run_to_end())["endless"][-1].error.code == UNAVAILABLE
        assert await worker.exit_status() == 0


async def test_sigterm_in_the_moment_that_the_lock_names_it_exits_0(tmp_path: Path) -> None:
    worker = RunningWorker(tmp_path)
    await worker.spawn()
    while not worker.lock_path.exists():
        pass  # no pause: a launcher may be as quick
    worker.signal(signal.SIGTERM)
    assert await worker.exit_status() == 0


async def test_sigterm_while_loading_exits_0(tmp_path: Path) -> None:
    async with RunningWorker(tmp_path, model="fake:load_seconds=600", wait_ready=False) as worker:
        await worker.until_state(fleet.WORKER_STATE_LOADING)
        worker.signal(signal.SIGTERM)
        assert await worker.exit_status() == 0


async def test_an_idle_engine_that_lost_a_block_ends_the_worker(tmp_path: Path) -> None:
    async with RunningWorker(tmp_path, model="fake:leak=1") as worker:
        async with worker.session() as session:
            await session.start(start("a", 1, max_tokens=1))
            await session.run_to_end()
        assert await worker.exit_status() == 1
        assert "1 block has no owner" in worker.errors


async def test_a_second_worker_on_one_lock_file_is_refused_in_a_sentence(tmp_path: Path) -> None:
    async with RunningWorker(tmp_path) as worker:
        second = RunningWorker(tmp_path)
        await second.spawn()
        assert await second.exit_status() == 2
        (line,) = second.errors.splitlines()
        assert line.startswith(f"Worker {worker.lock.worker_id} (pid {worker.process.pid}) holds {worker.lock_path}")
        assert worker.lock_path.exists()


@pytest.mark.parametrize("option", ["--listen", "--metrics-listen"])
async def test_a_port_in_use_is_named(tmp_path: Path, option: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        worker = RunningWorker(tmp_path, option, address)
        await worker.spawn()
        assert await worker.exit_status() == 2
    last = worker.errors.splitlines()[-1]
    assert f"{address} is in use: free it, or choose another address with {option}." in last
    assert "Traceback" not in worker.errors
    assert not worker.lock_path.exists()


def test_the_engine_process_imports_neither_grpc_nor_ray() -> None:
    code = "import sys, polyfleet.serving.engine_process, polyfleet.engine.engine; print(*sorted(sys.modules))"
    modules = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "msgspec" in modules
    assert not {"grpc", "ray", "google.protobuf"} & set(modules)

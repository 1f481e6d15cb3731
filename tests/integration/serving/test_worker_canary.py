"""A worker whose engine computes wrongly, or not at all: the real process, an engine that does so on purpose."""

import asyncio
import os
import signal
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tests.integration.serving.test_worker_metrics import scrape
from tests.support.fake_engine_worker import FAKE_ENGINE
from tests.support.fake_fleet import FakeFleet
from tests.support.fake_tokens import fake_tokens
from tests.support.running_worker import ROOT, RunningWorker
from tests.support.session_client import OWN_CONNECTION, tokens_of

from polyfleet.serving import engine_client
from polyfleet.serving.health.watchdog import WatchdogLimits
from polyfleet.serving.worker import LoadSpec, Worker
from polyfleet.v1 import fleet_pb2 as fleet
from polyfleet.v1 import worker_pb2 as pb
from polyfleet.v1 import worker_pb2_grpc

UNAVAILABLE = grpc.StatusCode.UNAVAILABLE.value[0]
SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
OFTEN = ("--canary-interval", "0.2", "--replace-after", "100000")
STALLS = ("--canary-interval", "0.2", "--stall-timeout", "0.5", "--replace-after", "3")
REASON = "The model answers wrongly on this device: the canary's token 1 is 767 instead of 766, which leads by 9.0."


async def healths(worker: RunningWorker) -> tuple[int, int]:
    """Of the service and of the process."""
    async with grpc.aio.insecure_channel(worker.address, options=OWN_CONNECTION) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        requests = [health_pb2.HealthCheckRequest(service=name) for name in ("polyfleet.v1.Worker", "liveness")]
        service, alive = [(await stub.Check(request)).status for request in requests]
        return service, alive


async def test_a_worker_that_answers_wrongly_leaves_says_why_and_comes_back(tmp_path: Path) -> None:
    flag = tmp_path / "wrong"
    model = f"fake:step_seconds=0.01,wrong_while={flag}"
    async with (
        FakeFleet() as scheduler,
        RunningWorker(tmp_path, "--fleet", scheduler.address, *OFTEN, model=model) as worker,
        worker.session() as session,
    ):
        await session.start(pb.StartSequence(sequence_id="long", prompt_ids=[1], max_tokens=50_000))
        while (await session.event()).status.running_sequences == 0:
            pass
        flag.touch()
        error = (await session.run_to_end())["long"][-1].error
        assert (error.code, error.message) == (UNAVAILABLE, REASON)
        await scheduler.until(lambda: scheduler.statuses[-1].state == fleet.WORKER_STATE_UNHEALTHY)
        assert scheduler.statuses[-1].reason == REASON
        assert await healths(worker) == (NOT_SERVING, SERVING)

        await session.start(pb.StartSequence(sequence_id="next", prompt_ids=[1], max_tokens=5))
        refused = (await session.run_to_end())["next"][-1].error
        assert (refused.code, refused.message) == (UNAVAILABLE, f"The worker is unhealthy: {REASON}.")

        flag.unlink()
        await worker.until_state(fleet.WORKER_STATE_READY)
        status = (await worker.status()).status
        assert (status.reason, status.counters.cancelled) == ("", 1), "what ran was cancelled in the engine too"
        assert await healths(worker) == (SERVING, SERVING)
        await session.start(pb.StartSequence(sequence_id="last", prompt_ids=[1], max_tokens=5))
        assert tokens_of((await session.run_to_end())["last"]) == fake_tokens([1], 5)
        assert scheduler.states()[-3:] == ["READY", "UNHEALTHY", "READY"]
        runs = await scrape(worker)
        assert runs["polyfleet_canary_runs_total right"] >= 2
        assert runs["polyfleet_canary_runs_total wrong"] >= 1
        assert runs["polyfleet_canary_runs_total failed"] == runs["polyfleet_canary_runs_total no_reference"] == 0


async def test_a_worker_that_answers_wrongly_from_the_start_never_becomes_ready(tmp_path: Path) -> None:
    flag = tmp_path / "wrong"
    flag.touch()
    async with FakeFleet() as scheduler:
        options = ("--fleet", scheduler.address, *OFTEN)
        async with RunningWorker(tmp_path, *options, model=f"fake:wrong_while={flag}", wait_ready=False) as worker:
            await worker.until_state(fleet.WORKER_STATE_UNHEALTHY)
            while (await scrape(worker))["polyfleet_canary_runs_total wrong"] < 3:
                await asyncio.sleep(0.05)
            assert "READY" not in scheduler.states()
            assert scheduler.statuses[-1].reason == REASON
            assert (await scrape(worker))["polyfleet_worker_ready"] == 0
            flag.unlink()
            await worker.until_state(fleet.WORKER_STATE_READY)


async def test_a_suspended_worker_can_be_drained_and_another_model_loaded(tmp_path: Path) -> None:
    flag = tmp_path / "wrong"
    flag.touch()
    model = f"fake:wrong_while={flag}"
    async with RunningWorker(tmp_path, *OFTEN, model=model, wait_ready=False) as worker:
        await worker.until_state(fleet.WORKER_STATE_UNHEALTHY)
        async with grpc.aio.insecure_channel(worker.address, options=OWN_CONNECTION) as channel:
            stub = worker_pb2_grpc.WorkerStub(channel)
            await stub.Unload(pb.UnloadRequest())
            assert (await worker.status()).status.state == fleet.WORKER_STATE_STARTING
            _ = [step async for step in stub.Load(pb.LoadRequest(model_name="m", source="fake:"))]
            assert (await worker.status()).status.state == fleet.WORKER_STATE_READY
            await stub.Unload(pb.UnloadRequest())
            _ = [step async for step in stub.Load(pb.LoadRequest(model_name="m", source=model))]
            assert (await worker.status()).status.state == fleet.WORKER_STATE_UNHEALTHY
        worker.signal(signal.SIGTERM)
        assert await worker.exit_status() == 0


async def test_a_worker_without_a_canary_says_that_nobody_knows(tmp_path: Path) -> None:
    async with RunningWorker(tmp_path, model="fake:canary=0") as worker:
        status = (await worker.status()).status
        assert (status.state, status.reason) == (fleet.WORKER_STATE_READY, "canary: no reference")


async def test_the_death_of_a_suspended_workers_engine_is_still_its_end(tmp_path: Path) -> None:
    async with RunningWorker(tmp_path, *OFTEN, model=f"fake:wrong_while={tmp_path}", wait_ready=False) as worker:
        await worker.until_state(fleet.WORKER_STATE_UNHEALTHY)
        os.kill(worker.engine().pid, signal.SIGKILL)
        assert await worker.exit_status() == 1


@pytest.mark.parametrize("interval", [0.0, 0.1])
async def test_a_worker_whose_engine_hangs_in_a_step_is_suspended_until_it_speaks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interval: float
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setattr(engine_client, "MODULE", FAKE_ENGINE)
    flag = tmp_path / "stuck"
    worker = Worker(fleet.WorkerInfo(), "cpu", limits=WatchdogLimits(interval, 0.5, 1000))
    try:
        await worker.load(LoadSpec(f"fake:stuck_while={flag}", "m", "", fleet.WorkerOptions()), lambda *_: None)
        session = worker.admission.open_session()
        flag.touch()
        worker.admission.start(session, pb.StartSequence(sequence_id="a", prompt_ids=[1], max_tokens=50_000))
        while worker.state != fleet.WORKER_STATE_UNHEALTHY:
            await asyncio.sleep(0.02)
        assert worker.status().reason == "The engine does not answer: a step hangs, on the device or before it."
        deltas = [delta for delta in await session.take(1.0) if delta.HasField("error")]
        assert [(delta.sequence_id, delta.error.code) for delta in deltas] == [("a", UNAVAILABLE)]
        flag.unlink()
        while worker.state != fleet.WORKER_STATE_READY:
            await asyncio.sleep(0.02)
        assert worker.status().reason == ""
    finally:
        await worker.close()


async def test_a_stopped_engine_loses_its_streams_and_is_replaced(tmp_path: Path) -> None:
    async with RunningWorker(tmp_path, *STALLS, model="fake:step_seconds=0.01") as worker, worker.session() as session:
        await session.start(pb.StartSequence(sequence_id="a", prompt_ids=[1], max_tokens=50_000))
        while (await session.event()).status.running_sequences == 0:
            pass
        stopped = worker.engine()
        os.kill(stopped.pid, signal.SIGSTOP)
        error = (await session.run_to_end())["a"][-1].error
        silent = "The engine does not answer: a step hangs, on the device or before it."
        assert (error.code, error.message) == (UNAVAILABLE, silent)
        assert (await worker.status()).status.state == fleet.WORKER_STATE_UNHEALTHY
        await worker.until_state(fleet.WORKER_STATE_READY)
        assert not stopped.is_running()
        assert (await worker.status()).status.reason == ""
        assert (await scrape(worker))["polyfleet_engine_replacements_total"] == 1
        await session.start(pb.StartSequence(sequence_id="b", prompt_ids=[1], max_tokens=5))
        assert tokens_of((await session.run_to_end())["b"]) == fake_tokens([1], 5)


async def test_a_stopped_engine_is_noticed_long_before_a_step_that_may_be_a_long_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setattr(engine_client, "MODULE", FAKE_ENGINE)
    worker = Worker(fleet.WorkerInfo(), "cpu", limits=WatchdogLimits(0.0, stall_timeout=3600.0))
    try:
        await worker.load(LoadSpec("fake:step_seconds=0.01", "m", "", fleet.WorkerOptions()), lambda *_: None)
        session = worker.admission.open_session()
        worker.admission.start(session, pb.StartSequence(sequence_id="a", prompt_ids=[1], max_tokens=50_000))
        assert worker.engine_pid is not None
        os.kill(worker.engine_pid, signal.SIGSTOP)
        while worker.state != fleet.WORKER_STATE_UNHEALTHY:
            await asyncio.sleep(0.02)
        reason = "The engine process is stopped, by SIGSTOP or a debugger."
        assert worker.status().reason == reason
        errors = [delta.error for delta in await session.take(1.0) if delta.HasField("error")]
        assert [(error.code, error.message) for error in errors] == [(UNAVAILABLE, reason)]
        os.kill(worker.engine_pid, signal.SIGCONT)
        while worker.state != fleet.WORKER_STATE_READY:
            await asyncio.sleep(0.02)
    finally:
        await worker.close()


async def test_a_worker_ends_when_a_new_engine_process_answers_as_wrongly(tmp_path: Path) -> None:
    flag = tmp_path / "wrong"
    async with FakeFleet() as scheduler:
        options = ("--fleet", scheduler.address, *STALLS)
        async with RunningWorker(tmp_path, *options, model=f"fake:wrong_while={flag}") as worker:
            first = worker.engine()
            flag.touch()
            assert await worker.exit_status() == 1
            assert not first.is_running()
        assert scheduler.statuses[-1].reason == f"A new engine process is no better. {REASON}"
        assert any(each.reason == f"{REASON} Its engine process is being replaced." for each in scheduler.statuses)
        assert scheduler.states().count("READY") == 1


async def test_a_worker_ends_when_a_new_engine_process_does_not_load(tmp_path: Path) -> None:
    flag = tmp_path / "loading"
    async with FakeFleet() as scheduler:
        options = ("--fleet", scheduler.address, *STALLS)
        async with RunningWorker(tmp_path, *options, model=f"fake:loading_while={flag}") as worker:
            flag.touch()
            os.kill(worker.engine().pid, signal.SIGSTOP)
            assert await worker.exit_status() == 1
        reason = scheduler.statuses[-1].reason
        assert reason.startswith("The engine process can't be replaced: the new one did not load the model within ")


async def test_a_worker_whose_engine_is_being_replaced_can_be_stopped(tmp_path: Path) -> None:
    model = "fake:load_seconds=1"
    async with RunningWorker(tmp_path, *STALLS, model=model) as worker:
        stopped = worker.engine()
        os.kill(stopped.pid, signal.SIGSTOP)
        while "being replaced" not in (await worker.status()).status.reason:
            await asyncio.sleep(0.02)
        worker.signal(signal.SIGTERM)
        assert await worker.exit_status() == 0
        assert not stopped.is_running()


async def test_a_load_that_stands_still_is_said_and_then_given_up(tmp_path: Path) -> None:
    flag = tmp_path / "loading"
    flag.touch()
    async with FakeFleet() as scheduler:
        options = ("--fleet", scheduler.address, "--load-stall-timeout", "0.5", "--replace-after", "2")
        model = f"fake:loading_while={flag}"
        async with RunningWorker(tmp_path, *options, model=model, wait_ready=False) as worker:
            assert await worker.exit_status() == 3
    said = [(each.state, each.reason) for each in scheduler.statuses]
    assert any(s == fleet.WORKER_STATE_LOADING and r.startswith("Loading has stood still for 0 s: ") for s, r in said)
    state, reason = said[-1]
    assert state == fleet.WORKER_STATE_UNHEALTHY
    assert reason.startswith("Loading has stood still for 1 s: ")
    assert reason.endswith(" It was given up.")

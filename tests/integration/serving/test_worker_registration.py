"""The real worker process and a Fleet that comes, goes and asks."""

import asyncio
import json
import signal
from pathlib import Path

from tests.support import fake_engine
from tests.support.fake_fleet import FakeFleet
from tests.support.fake_tokens import fake_tokens
from tests.support.running_worker import RunningWorker
from tests.support.session_client import tokens_of

from polyfleet.v1 import fleet_pb2 as fleet
from polyfleet.v1 import worker_pb2 as pb


async def test_a_worker_says_what_it_is_and_how_it_does(tmp_path: Path) -> None:
    options = ("--worker-id", "w-7", "--deployment", "d")
    async with FakeFleet() as scheduler:
        async with RunningWorker(tmp_path, "--fleet", scheduler.address, *options, model="fake:") as worker:
            await scheduler.until(lambda: "READY" in scheduler.states())
            info = scheduler.infos[-1]
            assert (info.worker_id, info.deployment, info.accelerator) == ("w-7", "d", "cpu")
            assert info.pid == worker.process.pid
            assert (info.address, info.metrics_address) == (worker.lock.address, worker.lock.metrics_address)
            assert info.device_name
            assert info.version
            assert (info.model.name, info.model.num_blocks, info.model.block_size) == ("fake", 1000, 16)
            assert not scheduler.infos[0].HasField("model")
            assert scheduler.states()[-2:] == ["LOADING", "READY"]
            before = len(scheduler.statuses)
            await scheduler.until(lambda: len(scheduler.statuses) >= before + 3)
            worker.signal(signal.SIGTERM)
            assert await worker.exit_status() == 0
        assert scheduler.states()[-1] == "DRAINING"
        assert len(scheduler.tokens) == 1, "one registration did for its whole life"


async def test_a_worker_serves_without_a_fleet_and_finds_it_again(tmp_path: Path) -> None:
    async with FakeFleet() as first:
        port = first.port
    async with RunningWorker(tmp_path, "--fleet", f"127.0.0.1:{port}", model="fake:") as worker:
        for _ in range(2):
            async with worker.session() as session:
                await session.start(pb.StartSequence(sequence_id="a", prompt_ids=[1], max_tokens=5))
                assert tokens_of((await session.run_to_end())["a"]) == fake_tokens([1], 5)
            async with FakeFleet(port) as scheduler:
                await scheduler.until(lambda: bool(scheduler.statuses))
                assert scheduler.infos[0].model.name == "fake"
                assert scheduler.states() == ["READY"]


async def test_tokenizer_assets_arrive_whole_in_chunks(tmp_path: Path) -> None:
    async with FakeFleet(want_assets=True) as scheduler:
        async with RunningWorker(tmp_path, "--fleet", scheduler.address, model="fake:"):
            await scheduler.until(lambda: len(scheduler.asset) >= len(fake_engine.DOCUMENT))
        assert scheduler.asset == fake_engine.DOCUMENT
        assert scheduler.asset_chunks == 2


async def test_a_worker_that_is_not_wanted_drains_and_exits(tmp_path: Path) -> None:
    async with (
        FakeFleet() as scheduler,
        RunningWorker(tmp_path, "--fleet", scheduler.address, model="fake:step_seconds=0.01") as worker,
    ):
        await scheduler.until(lambda: "READY" in scheduler.states())
        async with worker.session() as session:
            await session.start(pb.StartSequence(sequence_id="a", prompt_ids=[1], max_tokens=50))
            while (await session.event()).status.running_sequences != 1:
                pass
            scheduler.stop_workers()
            assert tokens_of((await session.run_to_end())["a"])[-10:] == fake_tokens([1], 50)[-10:]
        assert await worker.exit_status() == 0


async def test_a_model_that_cannot_be_served_is_reported_before_the_end(tmp_path: Path) -> None:
    async with FakeFleet() as scheduler:
        worker = RunningWorker(tmp_path, "--fleet", scheduler.address, model="fake:unusable=1")
        await worker.spawn()
        assert await worker.exit_status() == 3
        assert scheduler.states()[-1] == "UNHEALTHY"
        assert scheduler.statuses[-1].reason == "fake:unusable=1 is truncated: it ends in the middle of a tensor."


async def test_the_engines_death_is_reported_before_the_end(tmp_path: Path) -> None:
    async with FakeFleet() as scheduler:
        async with RunningWorker(tmp_path, "--fleet", scheduler.address, model="fake:") as worker:
            await scheduler.until(lambda: "READY" in scheduler.states())
            worker.engine().kill()
            assert await worker.exit_status() == 1
        assert scheduler.states()[-1] == "UNHEALTHY"
        assert scheduler.statuses[-1].reason == "The engine process was killed by SIGKILL."


async def test_progress_of_loading_is_reported(tmp_path: Path) -> None:
    async with FakeFleet() as scheduler:
        async with RunningWorker(tmp_path, "--fleet", scheduler.address, model="fake:load_seconds=2"):
            loading = [each for each in scheduler.statuses if each.state == fleet.WORKER_STATE_LOADING]
        progress = [each.load_progress for each in loading]
        assert progress == sorted(progress)
        assert 0 < progress[-1] < 1


async def test_the_fleet_token_is_shown_and_never_logged(tmp_path: Path) -> None:
    secret = tmp_path / "token"
    secret.write_text("s3cret-of-the-fleet\n")
    options = ("--fleet-token-file", str(secret), "--log-level", "debug")
    async with FakeFleet() as scheduler:
        async with RunningWorker(tmp_path, "--fleet", scheduler.address, *options) as worker:
            await scheduler.until(lambda: bool(scheduler.statuses))
            worker.signal(signal.SIGTERM)
            await worker.exit_status()
        assert scheduler.tokens == ["Bearer s3cret-of-the-fleet"]
        assert "s3cret" not in worker.errors
        assert all(json.loads(line)["level"] for line in worker.errors.splitlines())
    assert asyncio.all_tasks() == {asyncio.current_task()}

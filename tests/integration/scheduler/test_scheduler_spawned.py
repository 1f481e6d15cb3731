"""Looking after a spawned worker, with real processes and no Ray: start, restart, adoption, stop, bad models."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
import pytest
from tests.support.fake_interpreter import fake_interpreter
from tests.support.session_client import SessionClient

from polyfleet.process.channels import FleetAccess
from polyfleet.process.within import Within
from polyfleet.process.worker_lock import WorkerLock
from polyfleet.scheduler.config import LaunchConfig
from polyfleet.scheduler.launcher import spawned, worker_client
from polyfleet.scheduler.launcher.latest_report import LatestReport
from polyfleet.scheduler.launcher.launch import LauncherReport, LaunchSpec, Phase
from polyfleet.scheduler.launcher.launched_process import (
    ending,
    live_lock,
    lock_path,
    log_path,
    worker_command,
    worker_environment,
)
from polyfleet.scheduler.launcher.spawned import SpawnedWorker
from polyfleet.v1 import fleet_pb2 as fleet
from polyfleet.v1 import worker_pb2 as pb


def spec_of(folder: Path, source: str = "fake:", **launch: object) -> LaunchSpec:
    load = pb.LoadRequest(deployment="d", model_name="m", source=source)
    config = LaunchConfig(**{"interpreter": fake_interpreter(folder), **launch})  # type: ignore[arg-type]
    return LaunchSpec("worker-1", "cpu", load.SerializeToString(), config, "127.0.0.1:1", str(folder))


@dataclass
class Looking:
    """One launcher's inside."""

    spec: LaunchSpec
    latest: LatestReport
    worker: SpawnedWorker
    task: "asyncio.Task[None]"

    @property
    def report(self) -> LauncherReport:
        return self.latest.report

    async def until(self, condition: Callable[[LauncherReport], bool]) -> LauncherReport:
        while not condition(self.latest.report):
            await self.latest.next(self.latest.report.revision, 1.0)
        return self.latest.report

    async def until_up(self) -> WorkerLock:
        """Until the worker's ports are open."""
        while (lock := live_lock(self.spec)) is None or lock.pid != self.report.pid:
            await asyncio.sleep(0.02)
        return lock

    async def abandon(self) -> None:
        """End as by kill -9 of the launcher: the worker stays."""
        self.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.task


def look_after(spec: LaunchSpec) -> Looking:
    latest = LatestReport(spec)
    worker = SpawnedWorker(spec, latest, FleetAccess())
    return Looking(spec, latest, worker, asyncio.create_task(worker.run()))


@pytest.fixture
async def clean(tmp_path: Path) -> AsyncIterator[Path]:
    """A state folder; whatever still holds a lock in it is ended afterwards."""
    yield tmp_path
    if lock := live_lock(spec_of(tmp_path)):
        os.killpg(lock.pid, signal.SIGKILL)


async def test_a_killed_worker_is_started_again_with_another_pid(clean: Path) -> None:
    looking = look_after(spec_of(clean))
    first = await looking.until_up()
    os.kill(first.pid, signal.SIGKILL)
    failed = await looking.until(lambda r: r.phase is Phase.FAILED)
    assert failed.reason == f"The worker was killed by signal 9; its log is {log_path(looking.spec)}."
    assert failed.pid == first.pid
    second = await looking.until_up()
    assert second.pid != first.pid
    assert (looking.report.phase, looking.report.restarts) == (Phase.WATCHING, 1)
    await looking.worker.stop(grace=5.0)


async def test_a_worker_that_answers_no_more_is_killed_and_started_again(
    clean: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spawned, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(worker_client, "CALL_SECONDS", 0.5)
    looking = look_after(spec_of(clean))
    first = await looking.until_up()
    os.kill(first.pid, signal.SIGSTOP)
    failed = await looking.until(lambda r: r.phase is Phase.FAILED)
    assert failed.reason == "The worker did not answer any more and was killed."
    monkeypatch.setattr(spawned, "SILENT_LOOKS", 1000)  # the next one may take its time to start
    assert (await looking.until_up()).pid != first.pid
    await looking.worker.stop(grace=5.0)


async def test_a_stopped_worker_leaves_no_process_and_no_lock(clean: Path) -> None:
    looking = look_after(spec_of(clean))
    lock = await looking.until_up()
    family = [lock.pid, *(child.pid for child in psutil.Process(lock.pid).children(recursive=True))]
    await looking.worker.stop(grace=5.0)
    assert looking.report.phase is Phase.LEFT
    with Within(5.0):
        await looking.task
    assert not any(psutil.pid_exists(pid) for pid in family)
    assert not lock_path(looking.spec).exists()


async def test_stopping_lets_running_sequences_finish(clean: Path) -> None:
    looking = look_after(spec_of(clean, "fake:step_seconds=0.02"))
    lock = await looking.until_up()
    async with SessionClient(lock.address) as session:
        while (await session.event()).status.state != fleet.WORKER_STATE_READY:
            pass
        await session.start(pb.StartSequence(sequence_id="s", prompt_ids=[1], max_tokens=40))
        while not (first := await session.event()).deltas:  # until it runs
            pass
        stopping = asyncio.create_task(looking.worker.stop(grace=30.0))
        deltas = [*first.deltas, *(await session.run_to_end())["s"]]
        assert sum(len(delta.token_ids) for delta in deltas) == 40
    await stopping


async def test_stopping_cuts_off_what_takes_longer_than_the_grace(clean: Path) -> None:
    looking = look_after(spec_of(clean, "fake:step_seconds=0.02"))
    lock = await looking.until_up()
    async with SessionClient(lock.address) as session:
        while (await session.event()).status.state != fleet.WORKER_STATE_READY:
            pass
        await session.start(pb.StartSequence(sequence_id="s", prompt_ids=[1], max_tokens=90_000))
        await looking.worker.stop(grace=0.1)
    assert not psutil.pid_exists(lock.pid)


async def test_a_running_worker_is_adopted_and_no_second_one_started(clean: Path) -> None:
    first = look_after(spec_of(clean))
    lock = await first.until_up()
    await first.abandon()
    again = look_after(first.spec)
    await again.until(lambda r: r.phase is Phase.WATCHING)
    assert again.report.pid == lock.pid
    assert again.report.restarts == 0
    await again.worker.stop(grace=5.0)


async def test_an_adopted_worker_that_dies_is_started_again(clean: Path) -> None:
    first = look_after(spec_of(clean))
    lock = await first.until_up()
    await first.abandon()
    again = look_after(first.spec)
    await again.until(lambda r: r.phase is Phase.WATCHING)
    os.kill(lock.pid, signal.SIGKILL)
    await again.until(lambda r: r.phase is Phase.WATCHING and r.pid != lock.pid)
    assert again.report.restarts == 1
    await again.until_up()
    await again.worker.stop(grace=5.0)


async def test_a_worker_that_drained_by_itself_is_not_started_again(clean: Path) -> None:
    looking = look_after(spec_of(clean))
    lock = await looking.until_up()
    os.kill(lock.pid, signal.SIGTERM)
    await looking.until(lambda r: r.phase is Phase.LEFT)
    assert looking.report.restarts == 0


async def test_a_model_that_cannot_be_served_is_tried_again_and_each_time_the_reason_is_known(clean: Path) -> None:
    looking = look_after(spec_of(clean, "fake:unusable=1"))
    for restarts in (1, 2):
        failed = await looking.until(lambda r, n=restarts: r.phase is Phase.FAILED and r.restarts == n)  # type: ignore[misc]
        assert failed.reason.endswith("fake:unusable=1 is truncated: it ends in the middle of a tensor.")
    await looking.worker.stop(grace=5.0)
    assert looking.report.phase is Phase.LEFT


async def test_an_interpreter_that_is_not_there_is_named(clean: Path) -> None:
    looking = look_after(spec_of(clean, interpreter="/no/such/python"))
    failed = await looking.until(lambda r: r.phase is Phase.FAILED)
    assert failed.reason == "The worker can't be started: No such file or directory: /no/such/python."
    await looking.worker.stop(grace=5.0)
    assert looking.report.phase is Phase.LEFT


def test_a_lock_of_another_process_or_of_none_is_no_worker(tmp_path: Path) -> None:
    spec = spec_of(tmp_path)
    assert live_lock(spec) is None
    lock_path(spec).parent.mkdir()
    me = psutil.Process()
    for content, alive in (
        (f'{{"worker_id": "worker-1", "pid": {me.pid}, "started": {me.create_time()}}}', True),
        (f'{{"worker_id": "worker-1", "pid": {me.pid}, "started": {me.create_time() - 60}}}', False),
        (f'{{"worker_id": "worker-2", "pid": {me.pid}, "started": {me.create_time()}}}', False),
        ('{"worker_id": "worker-1", "pid": 999999999, "started": 0}', False),
        ("not json", False),
        ('{"pid": 1}', False),
    ):
        lock_path(spec).write_text(content)
        assert (live_lock(spec) is not None) == alive, content


def test_the_command_names_what_is_set_and_nothing_else(tmp_path: Path) -> None:
    load = pb.LoadRequest(
        deployment="d", model_name="m", source="/m.gguf", options=fleet.WorkerOptions(dtype="float32", threads=2)
    )
    spec = LaunchSpec("worker-1", "cpu", load.SerializeToString(), LaunchConfig(), "127.0.0.1:5", str(tmp_path))
    command = worker_command(spec)
    assert command[:4] == [sys.executable, "-m", "polyfleet.serving", "--launched"]
    flags = dict(zip(command[4::2], command[5::2], strict=True))
    assert flags["--dtype"] == "float32"
    assert flags["--threads"] == "2"
    assert flags["--fleet"] == "127.0.0.1:5"
    assert flags["--listen"] == "127.0.0.1:0"
    assert "--context-length" not in flags
    assert "--place" not in flags
    second = worker_command(replace(spec, place=1))
    assert second[second.index("--place") + 1] == "1"
    assert "--fleet-token-file" not in flags


def test_rays_variables_stay_with_ray(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, environment={"CUDA_VISIBLE_DEVICES": "1"})
    environ = {"PATH": "/bin", "RAY_JOB_ID": "1", "OMP_NUM_THREADS": "1", "PYTHONBREAKPOINT": "ray.util.rpdb.set_trace"}
    kept = {"PATH": "/bin", "CUDA_VISIBLE_DEVICES": "1"}
    assert worker_environment(spec, environ) == kept
    assert worker_environment(replace(spec, fleet_id="f"), environ) == {**kept, "POLYFLEET_FLEET_ID": "f"}


@pytest.mark.parametrize(
    ("log", "status", "reason"),
    [
        ('{"level": "error", "message": "bad magic."}\n{"level": "info", "message": "x"}\n', 3, "bad magic."),
        ("Listening on 1.2.3.4:5 failed.\n\n", 2, "Listening on 1.2.3.4:5 failed."),
        ("", 3, "The worker ended with status 3; its log is {log}."),
        ("secret prompt\n", 1, "The worker ended with status 1; its log is {log}."),
        ("", None, "The worker ended; its log is {log}."),
    ],
)
def test_the_reason_of_an_end(tmp_path: Path, log: str, status: int | None, reason: str) -> None:
    spec = spec_of(tmp_path)
    log_path(spec).parent.mkdir()
    log_path(spec).write_text(log)
    assert ending(spec, status) == reason.format(log=log_path(spec))

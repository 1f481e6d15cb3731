"""Benchmarks that the scheduler starts at a gateway: started, followed, cancelled, refused."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest
from click.testing import CliRunner, Result
from tests.support.fake_worker import FakeWorker
from tests.support.gateway_rig import MODEL, GatewayRig, text_worker
from tests.support.running_scheduler import Running, refusal, start, stop

from polyfleet.cli.main import cli
from polyfleet.scheduler.config import SchedulerConfig
from polyfleet.scheduler.operations.benchmarks import KEPT, BenchmarkDesk, checked
from polyfleet.v1 import operations_pb2 as pb
from polyfleet.wire.limits import FieldError

FIGURES = {"serving_ttft_p50", "serving_tpot_p99", "serving_throughput", "serving_request_rate", "serving_errors"}


@asynccontextmanager
async def benched(folder: Path) -> AsyncIterator[tuple[Running, FakeWorker]]:
    """A scheduler that knows a gateway, and that gateway's worker."""
    worker = text_worker("w-1")
    async with GatewayRig() as rig:
        await rig.add(worker)
        running = await start(folder, gateway=f"127.0.0.1:{rig.gateway.grpc.port}")
        try:
            yield running, worker
        finally:
            await stop(running)


async def command(running: Running, *arguments: str) -> Result:
    return await asyncio.to_thread(CliRunner().invoke, cli, ["bench", *arguments, "--fleet", running.address])


async def test_a_benchmark_is_followed_to_its_figures_and_another_is_cancelled(tmp_path: Path) -> None:
    async with benched(tmp_path) as (running, worker):
        done = await command(running, "start", "--requests=6", "--concurrency=2", "--max-tokens=5", "--json")
        assert done.exit_code == 0, done.output
        job = json.loads(done.output)
        assert (job["state"], job["ended"], job["errors"], job["plan"]["requests"]) == ("finished", 6, 0, 6)
        assert {row["name"] for row in job["rows"]} >= FIGURES
        worker.token_seconds = 0.02
        begun = await command(running, "start", "--requests=500", "--no-wait", "--json")
        benchmark_id = json.loads(begun.output)["id"]
        while not worker.sequences:
            await asyncio.sleep(0.01)
        error = await refusal(running.fleet.StartBenchmark(pb.StartBenchmarkRequest()))
        assert (error.code(), benchmark_id in error.details()) == (grpc.StatusCode.RESOURCE_EXHAUSTED, True)
        assert "cancelled" in (await command(running, "cancel", benchmark_id)).output
        while worker.sequences:  # its requests end with it
            await asyncio.sleep(0.01)
        listed = (await running.fleet.ListBenchmarks(pb.ListBenchmarksRequest())).benchmarks
        assert [each.id for each in listed] == [benchmark_id, job["id"]]
        assert listed[0].state == pb.BENCHMARK_STATE_CANCELLED
        assert "serving_throughput" in (await command(running, "show", job["id"])).output


async def test_what_can_not_be_measured_fails_with_the_reason(running: Running) -> None:
    desk = running.scheduler._benchmarks
    desk._door["gateway"] = "127.0.0.1:1"
    job = (await running.fleet.StartBenchmark(pb.StartBenchmarkRequest(plan=pb.BenchmarkPlan(requests=1)))).benchmark
    while desk._running:
        await asyncio.sleep(0.05)
    (job,) = desk.all()
    assert job.state == pb.BENCHMARK_STATE_FAILED
    assert job.problem.startswith("No request went well: ")
    assert not job.rows


async def test_refusals_say_why(running: Running) -> None:
    async def code(plan: pb.BenchmarkPlan) -> tuple[grpc.StatusCode, str]:
        error = await refusal(running.fleet.StartBenchmark(pb.StartBenchmarkRequest(plan=plan)))
        return error.code(), error.details()

    assert await code(pb.BenchmarkPlan()) == (
        grpc.StatusCode.FAILED_PRECONDITION,
        "The scheduler knows no gateway to put load on: name one with scheduler.gateway.",
    )
    running.scheduler._benchmarks._door["gateway"] = "127.0.0.1:1"
    assert await code(pb.BenchmarkPlan(model="nope")) == (
        grpc.StatusCode.NOT_FOUND,
        "There is no model 'nope'; there are: none.",
    )
    for request in (pb.GetBenchmarkRequest(id="b"), pb.CancelBenchmarkRequest(id="b")):
        call = getattr(running.fleet, type(request).__name__.removesuffix("Request"))
        assert (await refusal(call(request))).code() is grpc.StatusCode.NOT_FOUND
    assert (await code(pb.BenchmarkPlan(requests=10_001)))[0] is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize(
    ("plan", "problem"),
    [
        (pb.BenchmarkPlan(concurrency=65), "plan.concurrency: must be at most 64, not 65"),
        (pb.BenchmarkPlan(rate=float("nan")), "plan.rate: must be at most 1000, not nan"),
        (pb.BenchmarkPlan(rate=-1), "plan.rate: must be at most 1000, not -1"),
        (pb.BenchmarkPlan(seconds=float("inf")), "plan.seconds: must be at most 600, not inf"),
        (pb.BenchmarkPlan(max_tokens=5000), "plan.max_tokens: must be at most 4096, not 5000"),
        (pb.BenchmarkPlan(prompt="image"), "plan.prompt: must be one of text, chat, ids, not 'image'"),
    ],
)
def test_a_load_without_bounds_is_refused(plan: pb.BenchmarkPlan, problem: str) -> None:
    with pytest.raises(FieldError) as refused:
        checked(plan)
    assert str(refused.value) == problem


def test_what_a_plan_leaves_out_is_told() -> None:
    plan = checked(pb.BenchmarkPlan(model=MODEL))
    assert (plan.model, plan.concurrency, plan.requests, plan.seconds) == (MODEL, 1, 32, 60.0)
    assert (plan.prompt_tokens, plan.max_tokens, plan.prompt, plan.rate) == (128, 64, "text", 0.0)


async def test_the_last_ones_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polyfleet.scheduler.operations.benchmarks.BenchmarkDesk._follow", _nothing)
    desk, ids = BenchmarkDesk(SchedulerConfig(gateway="a:1")), list[str]()
    for _ in range(KEPT + 3):
        ids.append(desk.start(pb.BenchmarkPlan()).id)
        while desk._running:
            await asyncio.sleep(0)
    assert [each.id for each in desk.all()] == ids[:2:-1]
    assert desk.get(ids[0]) is None


async def _nothing(desk: BenchmarkDesk, job: pb.Benchmark) -> str:
    return ""

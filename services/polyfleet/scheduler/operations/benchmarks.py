"""Benchmarks of a model, through a gateway: one at a time, each in a process of its own; the last ones are kept.

They are kept in memory: another life of the scheduler begins with none.
"""

import asyncio
import json
import logging
import sys
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from polyfleet.process.tasks import end
from polyfleet.process.within import Within
from polyfleet.scheduler.config import SchedulerConfig
from polyfleet.v1 import operations_pb2 as pb
from polyfleet.wire.ids import new_id
from polyfleet.wire.limits import FieldError

KEPT = 20
PROGRAM = "polyfleet.benchmark"
GRACE_SECONDS = 60.0  # beyond the plan's own, for what then runs
KINDS = ("text", "chat", "ids")
# field: what an absent one means, and the highest
BOUNDS = {
    "concurrency": (1, 64),
    "rate": (0.0, 1000.0),
    "requests": (32, 10_000),
    "seconds": (60.0, 600.0),
    "prompt_tokens": (128, 32_768),
    "max_tokens": (64, 4096),
}
log = logging.getLogger(__name__)


class NoGateway(Exception):
    """The scheduler knows no gateway. The message is one sentence."""


class Busy(Exception):
    """Another one runs. The message is one sentence."""


def checked(wanted: pb.BenchmarkPlan) -> pb.BenchmarkPlan:
    """The plan with everything said that was left out. Raises FieldError."""
    plan = pb.BenchmarkPlan()
    plan.CopyFrom(wanted)
    for name, (usual, most) in BOUNDS.items():
        value = getattr(plan, name)
        if not 0 <= value <= most:
            raise FieldError(f"plan.{name}", f"must be at most {most:g}, not {value:g}")
        setattr(plan, name, value or usual)
    plan.prompt = plan.prompt or KINDS[0]
    if plan.prompt not in KINDS:
        raise FieldError("plan.prompt", f"must be one of {', '.join(KINDS)}, not {plan.prompt!r:.40}")
    return plan


class BenchmarkDesk:
    """Starts, follows and cancels them. Lives in one event loop."""

    def __init__(self, config: SchedulerConfig, clock: Callable[[], float] = time.time) -> None:
        self._door = {
            "gateway": config.gateway,
            "key_file": config.gateway_key_file,
            "ca_file": config.gateway_ca_file,
        }
        self._clock = clock
        self._kept = OrderedDict[str, pb.Benchmark]()
        self._running: dict[str, asyncio.Task[None]] = {}

    def start(self, plan: pb.BenchmarkPlan) -> pb.Benchmark:
        """Begin one. Raises FieldError, NoGateway and Busy."""
        plan = checked(plan)
        if not self._door["gateway"]:
            raise NoGateway("The scheduler knows no gateway to put load on: name one with scheduler.gateway.")
        if self._running:
            raise Busy(f"Benchmark {next(iter(self._running))} runs: wait for its end, or cancel it.")
        job = pb.Benchmark(
            id=new_id("bench"), plan=plan, state=pb.BENCHMARK_STATE_RUNNING, began_unix_seconds=self._clock()
        )
        self._kept[job.id] = job
        while len(self._kept) > KEPT:
            self._kept.popitem(last=False)
        task = self._running[job.id] = asyncio.create_task(self._run(job))
        task.add_done_callback(lambda _: self._running.pop(job.id))
        log.info("A benchmark began.", extra={"benchmark": job.id, "model": plan.model})
        return job

    def get(self, benchmark_id: str) -> pb.Benchmark | None:
        """One that is kept."""
        return self._kept.get(benchmark_id)

    def all(self) -> list[pb.Benchmark]:
        """Those that are kept, the latest first."""
        return [*reversed(self._kept.values())]

    async def cancel(self, benchmark_id: str) -> pb.Benchmark | None:
        """End one that runs; one that has ended stays as it is. None: there is none of that id."""
        if task := self._running.get(benchmark_id):
            await end(task)
        return self._kept.get(benchmark_id)

    async def close(self) -> None:
        """End what runs."""
        for benchmark_id in list(self._running):
            await self.cancel(benchmark_id)

    async def _run(self, job: pb.Benchmark) -> None:
        """From its start to its end, whichever."""
        try:
            with Within(job.plan.seconds + GRACE_SECONDS):
                problem = await self._follow(job)
            job.state = pb.BENCHMARK_STATE_FAILED if problem else pb.BENCHMARK_STATE_FINISHED
            job.problem = problem
        except asyncio.TimeoutError:
            job.state, job.problem = pb.BENCHMARK_STATE_FAILED, "It did not come to its end in time."
        except asyncio.CancelledError:
            job.state = pb.BENCHMARK_STATE_CANCELLED
        except OSError as error:
            job.state, job.problem = pb.BENCHMARK_STATE_FAILED, f"Its process can't be started: {error.strerror}."
        finally:
            job.seconds = self._clock() - job.began_unix_seconds
            fields = {"benchmark": job.id, "state": pb.BenchmarkState.Name(job.state)}
            log.info("A benchmark ended.", extra=fields)

    async def _follow(self, job: pb.Benchmark) -> str:
        """Run its process and take its news; why it failed, if it did. The process ends with its standard input."""
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(sys.executable, "-m", PROGRAM, stdin=pipe, stdout=pipe)
        assert process.stdin
        assert process.stdout
        try:
            process.stdin.write(json.dumps({**self._door, **_settings(job.plan)}).encode() + b"\n")
            problem = "Its process ended without a result."
            async for line in process.stdout:
                news: dict[str, Any] = json.loads(line)
                job.ended, job.errors = news.get("ended", job.ended), news.get("errors", job.errors)
                if "problem" in news:
                    problem = news["problem"]
                for row in news.get("rows", ()):
                    job.rows.add(**row)
            return problem
        finally:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()


def _settings(plan: pb.BenchmarkPlan) -> dict[str, Any]:
    return {field.name: getattr(plan, field.name) for field in plan.DESCRIPTOR.fields}

"""Benchmarks: bounded load on a model, begun, watched, cancelled, and two of them compared."""

from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from polyfleet.console.fleet.link import FleetProblem
from polyfleet.console.fleet.view import FleetView
from polyfleet.console.fleet.words import benchmark_word
from polyfleet.console.pages.acts import act
from polyfleet.console.pages.guard import Guard, form_of
from polyfleet.console.pages.look import Look
from polyfleet.console.pages.models import served_models
from polyfleet.v1 import operations_pb2

WHOLE = {"concurrency": 64, "requests": 10_000, "prompt_tokens": 32_768, "max_tokens": 4096}  # the most of each


def plan_of(form: Mapping[str, str]) -> operations_pb2.BenchmarkPlan:
    """What a form wishes for; what is empty is the scheduler's to say. Raises ValueError, which names the field."""
    plan = operations_pb2.BenchmarkPlan(model=form.get("model", ""))
    for name, most in WHOLE.items():
        if text := form.get(name, "").strip():
            if not text.isdecimal() or not 1 <= int(text) <= most:
                raise ValueError(f"{name}: must be a number from 1 to {most}, not {text!r:.20}.")
            setattr(plan, name, int(text))
    return plan


def compared(
    one: operations_pb2.Benchmark, other: operations_pb2.Benchmark | None
) -> list[tuple[str, str, float | None, float | None, float | None]]:
    """Figures by name: unit, of the one, of the other, and the one's as a multiple of it."""
    others = {row.name: row for row in other.rows} if other else {}
    found = []
    for row in one.rows:
        value = row.value if row.HasField("value") else None
        beside = others.get(row.name)
        against = beside.value if beside is not None and beside.HasField("value") else None
        found.append((row.name, row.unit, value, against, value / against if value is not None and against else None))
    return found


class BenchPages:
    """Routes of its own."""

    def __init__(self, guard: Guard, look: Look, view: FleetView) -> None:
        self._guard, self._look, self._view = guard, look, view

    def routes(self) -> list[Route]:
        """Where it answers."""
        operators = self._guard.operators
        return [
            Route("/bench", operators(self._list), methods=["GET"]),
            Route("/bench", operators(self._start), methods=["POST"]),
            Route("/bench/{id}", operators(self._one), methods=["GET"]),
            Route("/bench/{id}/cancel", operators(self._cancel), methods=["POST"]),
        ]

    async def _jobs(self) -> list[operations_pb2.Benchmark]:
        asked = operations_pb2.ListBenchmarksRequest()
        answer = await self._view.link.call("ListBenchmarks", asked, operations_pb2.ListBenchmarksResponse)
        return list(answer.benchmarks)

    async def _list(self, request: Request) -> Response:
        return await self._shown(request, {}, "")

    async def _shown(self, request: Request, form: Mapping[str, str], problem: str) -> Response:
        await self._view.fresh()
        try:
            jobs = await self._jobs()
        except FleetProblem as error:
            jobs, problem = [], problem or str(error)
        names = [each.name for each in served_models(self._view.snapshot)]
        facts: dict[str, Any] = {
            "jobs": jobs,
            "models": names,
            "form": form,
            "problem": problem,
            "state": benchmark_word,
        }
        return self._look.page(request, "bench.html", 400 if problem and form else 200, **facts)

    async def _start(self, request: Request) -> Response:
        form = await form_of(request)
        try:
            asked = operations_pb2.StartBenchmarkRequest(plan=plan_of(form))
            answer = await self._view.link.call("StartBenchmark", asked, operations_pb2.StartBenchmarkResponse)
        except (ValueError, FleetProblem) as error:
            return await self._shown(request, form, str(error))
        return RedirectResponse(f"{request.scope.get('root_path', '')}/bench/{answer.benchmark.id}", 303)

    async def _one(self, request: Request) -> Response:
        wanted, beside = request.path_params["id"], request.query_params.get("beside", "")
        try:
            jobs = {each.id: each for each in await self._jobs()}
        except FleetProblem as error:
            return self._look.page(request, "refused.html", 503, problem=str(error))
        if wanted not in jobs:
            return self._look.page(request, "absent.html", 404, what=wanted)
        job, other = jobs[wanted], jobs.get(beside)
        facts: dict[str, Any] = {"job": job, "other": other, "rows": compared(job, other), "state": benchmark_word}
        others = [each for each in jobs.values() if each.id != wanted and each.rows]
        return self._look.page(request, "benchmark.html", others=others, **facts)

    async def _cancel(self, request: Request) -> Response:
        wanted = request.path_params["id"]
        asked, answer = operations_pb2.CancelBenchmarkRequest(id=wanted), operations_pb2.CancelBenchmarkResponse
        return await act(self._look, self._view, request, "CancelBenchmark", asked, answer, f"/bench/{wanted}")

"""The calls of `Fleet` about benchmarks."""

from typing import Any

import grpc

from polyfleet.scheduler.aborts import abort_invalid
from polyfleet.scheduler.fleet.registry import Registry
from polyfleet.scheduler.operations.benchmarks import BenchmarkDesk, Busy, NoGateway
from polyfleet.v1 import fleet_pb2
from polyfleet.v1 import operations_pb2 as pb
from polyfleet.wire.limits import FieldError


def served_names(snapshot: fleet_pb2.FleetSnapshot) -> frozenset[str]:
    """Every name under which somebody serves a model or an adapter, or is to."""
    names = set[str]()
    for wish in (*snapshot.deployments, *snapshot.pools):
        names |= {wish.model_name or wish.name, *(each.name for each in wish.adapters)}
    for model in (each.info.model for each in snapshot.workers):
        names |= {model.name, *(each.name for each in model.adapters)}
    return frozenset(names - {""})


class BenchmarkCalls:
    """A part of FleetService."""

    _registry: Registry
    benchmarks: BenchmarkDesk

    async def StartBenchmark(self, request: pb.StartBenchmarkRequest, context: Any) -> pb.StartBenchmarkResponse:
        """It runs on when the caller has gone."""
        model, known = request.plan.model, served_names(self._registry.snapshot())
        if model and model not in known:
            listed = ", ".join(sorted(known)[:50]) or "none"
            await context.abort(grpc.StatusCode.NOT_FOUND, f"There is no model {model!r:.80}; there are: {listed}.")
        try:
            return pb.StartBenchmarkResponse(benchmark=self.benchmarks.start(request.plan))
        except FieldError as error:
            await abort_invalid(context, error)
        except NoGateway as error:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        except Busy as error:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))
        raise AssertionError("abort() raises")

    async def GetBenchmark(self, request: pb.GetBenchmarkRequest, context: Any) -> pb.GetBenchmarkResponse:
        """As it stands."""
        return pb.GetBenchmarkResponse(benchmark=await _kept(self.benchmarks.get(request.id), request.id, context))

    async def ListBenchmarks(self, request: pb.ListBenchmarksRequest, context: Any) -> pb.ListBenchmarksResponse:
        """Those that are kept."""
        return pb.ListBenchmarksResponse(benchmarks=self.benchmarks.all())

    async def CancelBenchmark(self, request: pb.CancelBenchmarkRequest, context: Any) -> pb.CancelBenchmarkResponse:
        """Its requests are cancelled with it."""
        found = await self.benchmarks.cancel(request.id)
        return pb.CancelBenchmarkResponse(benchmark=await _kept(found, request.id, context))


async def _kept(found: pb.Benchmark | None, benchmark_id: str, context: Any) -> pb.Benchmark:
    if found is None:
        await context.abort(grpc.StatusCode.NOT_FOUND, f"There is no benchmark {benchmark_id!r:.80} that is kept.")
        raise AssertionError("abort() raises")
    return found

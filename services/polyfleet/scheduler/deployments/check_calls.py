"""The call of `Fleet` that looks at a model before it is deployed."""

from collections.abc import Iterable
from typing import Any

import grpc

from polyfleet.process.channels import FleetAccess
from polyfleet.scheduler.aborts import abort_invalid
from polyfleet.scheduler.fleet.devices import WorkerDevices
from polyfleet.scheduler.fleet.record import Record
from polyfleet.scheduler.fleet.registry import Registry
from polyfleet.scheduler.launcher.worker_client import WorkerClient
from polyfleet.v1 import fleet_pb2 as pb
from polyfleet.v1 import worker_pb2
from polyfleet.wire.limits import FieldError
from polyfleet.wire.options import options_in

MAX_HOSTS = 8  # that are asked in turn
LOOKING = (pb.WORKER_STATE_READY, pb.WORKER_STATE_STARTING, pb.WORKER_STATE_LOADING, pb.WORKER_STATE_UNHEALTHY)


def sites_of(reported: Iterable[WorkerDevices], accelerators: Iterable[str]) -> list[worker_pb2.Site]:
    """Each accelerator and product once for each size of its memory; those of these accelerators alone, if any."""
    wanted = set(accelerators)
    found = {
        (each.accelerator, each.name, each.memory_total_bytes)
        for one in reported
        for each in one.report.devices
        if each.memory_total_bytes and (not wanted or each.accelerator in wanted)
    }
    return [
        worker_pb2.Site(accelerator=accelerator, name=f"{accelerator} {product}".strip(), memory_bytes=size)
        for accelerator, product, size in sorted(found)
    ]


def lookers(records: Iterable[Record], accelerators: Iterable[str]) -> list[pb.WorkerInfo]:
    """A worker of each host that can look, those on the wanted accelerators and those that are ready first."""
    wanted = set(accelerators)

    def rank(record: Record) -> tuple[bool, int, str]:
        return bool(wanted) and record.info.accelerator not in wanted, LOOKING.index(record.status.state), key(record)

    def key(record: Record) -> str:
        return record.info.worker_id

    able = [each for each in records if each.info.address and not each.lost and each.status.state in LOOKING]
    by_host: dict[str, pb.WorkerInfo] = {}
    for record in sorted(able, key=rank):
        by_host.setdefault(record.info.host, record.info)
    return list(by_host.values())[:MAX_HOSTS]


class CheckCalls:
    """A part of FleetService."""

    _registry: Registry
    _access: FleetAccess

    async def CheckModel(self, request: pb.CheckModelRequest, context: Any) -> pb.CheckModelResponse:
        """Asked of a worker of one host after the other, until one sees the model."""
        if not request.source.strip():
            await abort_invalid(context, FieldError("source", "must not be empty"))
        try:
            options_in(request.options)
        except FieldError as error:
            await abort_invalid(context, error.on(f"options.{error.field}"))
        sites = sites_of(self._registry.devices, request.accelerators)
        asked = worker_pb2.InspectRequest(source=request.source, options=request.options, sites=sites)
        problems = dict[str, str]()
        for info in lookers(self._registry.records, request.accelerators):
            try:
                async with WorkerClient(info.address, self._access) as client:
                    return pb.CheckModelResponse(worker_id=info.worker_id, inspection=await client.inspect(asked))
            except grpc.aio.AioRpcError as error:
                if error.code() is grpc.StatusCode.FAILED_PRECONDITION:
                    problems[info.host] = error.details() or ""
                elif error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
                    text = f"Worker {info.worker_id} looks at another model: ask again."
                    await context.abort(grpc.StatusCode.UNAVAILABLE, text)
        if problems:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, " ".join(_told(problems)))
        text = "No worker is there that could look at the model: deploy it, and its workers say whether it fits."
        await context.abort(grpc.StatusCode.UNAVAILABLE, text)
        raise AssertionError("abort() raises")


def _told(problems: dict[str, str]) -> list[str]:
    """Each problem once, with its hosts where there are several."""
    if len(problems) == 1:
        return list(problems.values())
    hosts: dict[str, list[str]] = {}
    for host, problem in problems.items():
        hosts.setdefault(problem, []).append(host)
    return [f"On {', '.join(each)}: {problem}" for problem, each in hosts.items()]

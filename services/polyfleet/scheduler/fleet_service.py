"""The Fleet service: gRPC at the edge of registry, store and feed."""

import asyncio
import itertools
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import grpc

from polyfleet.convert.assets import asset_chunks
from polyfleet.process.channels import FleetAccess
from polyfleet.process.within import Within
from polyfleet.scheduler.aborts import abort_invalid, abort_not_found, abort_unwritten
from polyfleet.scheduler.deployments.adapter_calls import AdapterCalls
from polyfleet.scheduler.deployments.adapters import AdapterDesk
from polyfleet.scheduler.deployments.check_calls import CheckCalls
from polyfleet.scheduler.deployments.deployment_calls import DeploymentCalls, Steering
from polyfleet.scheduler.deployments.validate import check_info, check_status
from polyfleet.scheduler.fleet.assets import Uploads
from polyfleet.scheduler.fleet.demand import Demand, check_demand
from polyfleet.scheduler.fleet.devices import check_devices
from polyfleet.scheduler.fleet.registry import MAX_WORKERS, FullError, Registry, TakenError
from polyfleet.scheduler.fleet.snapshot_feed import SnapshotFeed
from polyfleet.scheduler.operations.calls import OperationsCalls
from polyfleet.scheduler.request_log import RequestLog
from polyfleet.scheduler.store import Store, StoreError
from polyfleet.scheduler.tenants.tenant_calls import TenantCalls
from polyfleet.v1 import fleet_pb2 as pb
from polyfleet.v1 import fleet_pb2_grpc
from polyfleet.wire.auth import Metadata
from polyfleet.wire.limits import FieldError

ForeignWorker = Callable[[Metadata, pb.WorkerInfo, str], str]
MAX_STREAMS = 2 * MAX_WORKERS  # of Register; a worker that dials again may have an old one
FIRST_SECONDS, SILENT_SECONDS = 10.0, 60.0  # without the first message, without another one: the stream is ended
log = logging.getLogger(__name__)


class ForeignError(Exception):
    """A worker belongs to another fleet, or its key to another deployment. The message is one sentence."""


class FleetService(
    AdapterCalls,
    DeploymentCalls,
    CheckCalls,
    OperationsCalls,
    fleet_pb2_grpc.FleetServicer,  # type: ignore[misc]
):
    """See `polyfleet/v1/fleet.proto` for what each call promises."""

    def __init__(
        self,
        store: Store,
        registry: Registry,
        feed: SnapshotFeed,
        steering: Steering,
        clock: Callable[[], float] = time.monotonic,
        *,
        loopback: bool = False,
        fleet_id: str = "",
        keys_file: Path | None = None,
        foreign_worker: ForeignWorker = lambda _, __, ___: "",
        access: FleetAccess | None = None,
        demand: Demand | None = None,
    ) -> None:
        """`loopback`: workers of this machine alone may register. Workers of another `fleet_id` may not.

        `keys_file` is that of the gateways, which names tenants' quotas. `foreign_worker` says why the caller with
        this metadata may not register as that worker, whose deployment serves that model.
        """
        self._store, self._registry, self._feed, self._steering = store, registry, feed, steering
        self._clock, self._loopback, self._fleet_id = clock, loopback, fleet_id
        self._streams = itertools.count()
        self._num_streams = 0
        self._uploads = Uploads()
        self.requests = RequestLog()
        self._tenants = TenantCalls(store.usage, keys_file, clock, self.requests)
        self._demand = demand or Demand()
        self._keys_file, self._access = keys_file, access or FleetAccess()
        self._foreign_worker = foreign_worker
        self.adapters = AdapterDesk(store, registry, self._access, self._wish_changed)

    async def Register(
        self, requests: AsyncIterator[pb.RegisterRequest], context: Any
    ) -> AsyncIterator[pb.RegisterResponse]:
        """Follow one worker for as long as its stream lives."""
        self._num_streams += 1
        try:
            if self._num_streams > MAX_STREAMS:
                raise FullError(f"The scheduler follows {MAX_STREAMS} registrations already: no more are taken.")
            metadata = context.invocation_metadata()
            async with aclosing(self._follow(requests, metadata)) as answers:
                async for answer in answers:
                    yield answer
        except FieldError as error:
            log.warning("A registration was refused: %s.", error)
            await abort_invalid(context, error)
        except ForeignError as error:
            log.warning("A registration was refused: %s", error)
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        except (TakenError, FullError) as error:
            log.warning("A registration was refused: %s", error)
            taken = isinstance(error, TakenError)
            code = grpc.StatusCode.ALREADY_EXISTS if taken else grpc.StatusCode.RESOURCE_EXHAUSTED
            await context.abort(code, str(error))
        except asyncio.TimeoutError:
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "The worker said nothing for too long.")
        finally:
            self._num_streams -= 1

    async def _follow(
        self, requests: AsyncIterator[pb.RegisterRequest], metadata: Metadata
    ) -> AsyncGenerator[pb.RegisterResponse, None]:
        """The answers to one stream. Raises FieldError, ForeignError, TakenError, FullError, TimeoutError."""
        stream = next(self._streams)
        worker_id, wanted = "", ""
        try:
            async for request in _patiently(requests):
                kind = request.WhichOneof("message")
                if kind == "info":
                    served = self._registry.served_by(request.info.deployment)
                    if problem := self._foreign_worker(metadata, request.info, served):
                        raise ForeignError(problem)
                    worker_id = self._register(request.info, worker_id, stream)
                    wanted = self._still_wanted(request.info.model.tokenizer_hash)
                    asked = self._ask(wanted, stream)
                    yield self._answer(request.info, asked)
                    wanted = "" if asked else wanted
                elif not worker_id:
                    raise FieldError("info", "must be the first message")
                elif kind == "status":
                    check_status(request.status)
                    self._registry.report(worker_id, request.status, stream, self._clock())
                    wanted = self._still_wanted(wanted)
                    if asked := self._ask(wanted, stream):
                        yield pb.RegisterResponse(scheduler_epoch=self._registry.epoch, want_asset=asked)
                        wanted = ""
                elif kind == "asset":
                    self._receive(request.asset, stream)
                elif kind == "devices":
                    check_devices(request.devices)
                    self._registry.report_devices(worker_id, request.devices, stream, self._clock())
        finally:
            self._uploads.end(stream)
            self._registry.closed(worker_id, stream)

    def _register(self, info: pb.WorkerInfo, known_as: str, stream: int) -> str:
        check_info(info, loopback=self._loopback)
        if info.fleet_id not in ("", self._fleet_id):
            raise ForeignError(f"Worker {info.worker_id} belongs to the scheduler of another state folder.")
        if known_as not in ("", info.worker_id):
            raise FieldError("info.worker_id", f"must stay {known_as!r} on one stream, not {info.worker_id!r:.80}")
        self._registry.register(info, stream, self._clock())
        if not known_as:
            fields = {"worker_id": info.worker_id, "deployment": info.deployment, "worker_pid": info.pid}
            log.info("A worker registered.", extra=fields)
        return info.worker_id

    def _answer(self, info: pb.WorkerInfo, asked: str) -> pb.RegisterResponse:
        """`asked`: the assets that it is to send."""
        managed = info.HasField("model") and not info.own_model  # an attached one may stay, without a model
        stop = managed and bool(info.deployment) and self._store.was_removed(info.deployment)
        return pb.RegisterResponse(scheduler_epoch=self._registry.epoch, want_asset=asked, stop=stop)

    def _still_wanted(self, content_hash: str) -> str:
        """The hash of assets that are not held; empty when they are."""
        return content_hash if content_hash and not self._store.has_asset(content_hash) else ""

    def _ask(self, wanted: str, stream: int) -> str:
        """`wanted`, where this stream is the one to send it."""
        return wanted if wanted and self._uploads.begin(wanted, stream, self._clock()) else ""

    def _receive(self, chunk: pb.AssetChunk, stream: int) -> None:
        """A piece of assets. Those that find no room are left out: the worker still serves token ids."""
        if (data := self._uploads.add(chunk, stream)) is None:
            return
        in_use = {record.announced.model.tokenizer_hash for record in self._registry.records}
        try:
            self._store.put_asset(chunk.hash, data, in_use)
        except StoreError as error:
            kept = "kept in memory alone" if self._store.has_asset(chunk.hash) else "not kept"
            log.error("Tokenizer %s is %s: %s", chunk.hash, kept, error)

    async def WatchFleet(self, request: pb.WatchFleetRequest, context: Any) -> AsyncIterator[pb.FleetSnapshot]:
        """Snapshots for as long as the caller listens."""
        async with aclosing(self._feed.watch(partial=request.partial)) as snapshots:
            async for snapshot in snapshots:
                yield snapshot

    async def GetTokenizer(self, request: pb.GetTokenizerRequest, context: Any) -> AsyncIterator[pb.AssetChunk]:
        """The assets in chunks."""
        if (data := self._store.asset(request.hash)) is None:
            problem = f"There are no tokenizer assets with hash {request.hash!r:.80}."
            await context.abort(grpc.StatusCode.NOT_FOUND, problem)
            return
        for chunk in asset_chunks(request.hash, data):
            yield chunk

    async def ListWorkers(self, request: pb.ListWorkersRequest, context: Any) -> pb.FleetSnapshot:
        """The fleet now."""
        return self._registry.snapshot()

    async def Drain(self, request: pb.DrainRequest, context: Any) -> pb.DrainResponse:
        """Begin to drain one worker."""
        if (worker := self._registry.record(request.worker_id)) is None:
            ids = [record.info.worker_id for record in self._registry.records]
            await abort_not_found(context, "worker", request.worker_id, ids)
        if worker and worker.launcher:
            await self._be_able(context)
        log.info("A worker is to drain.", extra={"worker_id": request.worker_id})
        self._steering.drain(request.worker_id)
        return pb.DrainResponse()

    async def ReportUsage(self, request: pb.ReportUsageRequest, context: Any) -> pb.ReportUsageResponse:
        """One gateway's; see TenantCalls and Demand."""
        try:
            check_demand(request)
            answer = self._tenants.report(request)
        except FieldError as error:
            await abort_invalid(context, error)
        except StoreError as error:
            await abort_unwritten(context, error)
        self._demand.report(request, self._clock())
        return answer

    async def Usage(self, request: pb.UsageRequest, context: Any) -> pb.UsageResponse:
        """What was used; see TenantCalls."""
        try:
            return self._tenants.used(request)
        except FieldError as error:
            await abort_invalid(context, error)


async def _patiently(requests: AsyncIterator[pb.RegisterRequest]) -> AsyncIterator[pb.RegisterRequest]:
    """The requests. Raises TimeoutError when the next one is too long in coming."""
    source, seconds = aiter(requests), FIRST_SECONDS
    while True:
        with Within(seconds):
            request = await anext(source, None)
        if request is None:
            return
        yield request
        seconds = SILENT_SECONDS

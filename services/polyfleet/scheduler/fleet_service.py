"""The Fleet service: gRPC at the edge of registry, store and feed."""

import itertools
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Any, NoReturn, Protocol

import grpc
from google.protobuf import any_pb2
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc_status import rpc_status

from polyfleet.scheduler.assets import AssetUpload, chunks
from polyfleet.scheduler.feed import SnapshotFeed
from polyfleet.scheduler.registry import Registry
from polyfleet.scheduler.store import Store
from polyfleet.scheduler.validate import check_deployment
from polyfleet.v1 import fleet_pb2 as pb
from polyfleet.v1 import fleet_pb2_grpc
from polyfleet.wire.limits import REQUEST_ID, FieldError

log = logging.getLogger(__name__)


class Steering(Protocol):
    """What the service asks of the controller."""

    def poke(self) -> None:
        """The wish has changed."""

    def drain(self, worker_id: str) -> None:
        """Let this worker finish and stop; at once, in the background."""


class FleetService(fleet_pb2_grpc.FleetServicer):  # type: ignore[misc]
    """See `polyfleet/v1/fleet.proto` for what each call promises."""

    def __init__(
        self,
        store: Store,
        registry: Registry,
        feed: SnapshotFeed,
        steering: Steering,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store, self._registry, self._feed, self._steering = store, registry, feed, steering
        self._clock = clock
        self._streams = itertools.count()

    async def Register(
        self, requests: AsyncIterator[pb.RegisterRequest], context: Any
    ) -> AsyncIterator[pb.RegisterResponse]:
        """Follow one worker for as long as its stream lives."""
        stream = next(self._streams)
        worker_id, upload = "", None
        try:
            async for request in requests:
                kind = request.WhichOneof("message")
                if kind == "info":
                    worker_id = self._register(request.info, worker_id, stream)
                    answer = self._answer(request.info)
                    upload = AssetUpload(answer.want_asset) if answer.want_asset else None
                    yield answer
                elif kind == "status" and worker_id:
                    self._registry.report(worker_id, request.status, stream, self._clock())
                elif kind == "asset" and upload and (data := upload.add(request.asset)) is not None:
                    self._store.put_asset(upload.wanted, data)
                    upload = None
                elif not worker_id:
                    raise FieldError("info", "must be the first message")
                self._feed.poke()
        except FieldError as error:
            log.warning("A registration was refused: %s.", error, extra={"worker_id": worker_id})
            await abort_invalid(context, error)
        finally:
            self._registry.closed(worker_id, stream)
            self._feed.poke()

    def _register(self, info: pb.WorkerInfo, known_as: str, stream: int) -> str:
        if not REQUEST_ID.fullmatch(info.worker_id):
            raise FieldError("info.worker_id", "must be 1 to 128 of A-Z, a-z, 0-9, '.', '_', ':' and '-'")
        if known_as not in ("", info.worker_id):
            raise FieldError("info.worker_id", f"must stay {known_as!r} on one stream, not {info.worker_id!r}")
        self._registry.register(info, stream, self._clock())
        fields = {"worker_id": info.worker_id, "deployment": info.deployment, "worker_pid": info.pid}
        log.info("A worker registered.", extra=fields)
        return info.worker_id

    def _answer(self, info: pb.WorkerInfo) -> pb.RegisterResponse:
        wanted = info.model.tokenizer_hash
        serves = info.deployment if info.HasField("model") else ""  # an attached worker may stay, without a model
        return pb.RegisterResponse(
            scheduler_epoch=self._registry.epoch,
            want_asset=wanted if wanted and not self._store.has_asset(wanted) else "",
            stop=bool(serves) and self._store.was_removed(serves),
        )

    async def WatchFleet(self, request: pb.WatchFleetRequest, context: Any) -> AsyncIterator[pb.FleetSnapshot]:
        """Snapshots for as long as the caller listens."""
        async with aclosing(self._feed.watch()) as snapshots:
            async for snapshot in snapshots:
                yield snapshot

    async def GetTokenizer(self, request: pb.GetTokenizerRequest, context: Any) -> AsyncIterator[pb.AssetChunk]:
        """The assets in chunks."""
        if (data := self._store.asset(request.hash)) is None:
            problem = f"There are no tokenizer assets with hash {request.hash!r}."
            await context.abort(grpc.StatusCode.NOT_FOUND, problem)
            return
        for chunk in chunks(request.hash, data):
            yield chunk

    async def ListWorkers(self, request: pb.ListWorkersRequest, context: Any) -> pb.FleetSnapshot:
        """The fleet now."""
        return self._registry.snapshot()

    async def Drain(self, request: pb.DrainRequest, context: Any) -> pb.DrainResponse:
        """Begin to drain one worker."""
        if self._registry.record(request.worker_id) is None:
            ids = [record.info.worker_id for record in self._registry.records]
            await _abort_not_found(context, "worker", request.worker_id, ids)
        log.info("A worker is to drain.", extra={"worker_id": request.worker_id})
        self._steering.drain(request.worker_id)
        return pb.DrainResponse()

    async def Deploy(self, request: pb.DeployRequest, context: Any) -> pb.DeployResponse:
        """Store the wish; the controller follows it."""
        wish = pb.ModelDeployment()
        wish.CopyFrom(request.deployment)
        try:
            check_deployment(wish)
        except FieldError as error:
            await abort_invalid(context, error)
        known = {each.name: each for each in self._store.deployments()}
        before = known.get(wish.name)
        wish.created_unix_seconds = before.created_unix_seconds if before else int(time.time())
        wish.problem = ""
        self._store.put_deployment(wish)
        log.info("A deployment was stored.", extra={"deployment": wish.name, "workers": wish.workers})
        self._wish_changed()
        return pb.DeployResponse(deployment=wish)

    async def Undeploy(self, request: pb.UndeployRequest, context: Any) -> pb.UndeployResponse:
        """Remove the wish; the controller drains its workers."""
        if not self._store.remove_deployment(request.name):
            names = [deployment.name for deployment in self._store.deployments()]
            await _abort_not_found(context, "deployment", request.name, names)
        log.info("A deployment was removed.", extra={"deployment": request.name})
        self._wish_changed()
        return pb.UndeployResponse()

    def _wish_changed(self) -> None:
        self._registry.set_deployments(self._store.deployments())
        self._feed.poke()
        self._steering.poke()


async def abort_invalid(context: Any, error: FieldError) -> NoReturn:
    """End the call with INVALID_ARGUMENT; BadRequest in its details names the field."""
    violation = error_details_pb2.BadRequest.FieldViolation(field=error.field, description=error.problem)
    detail = any_pb2.Any()
    detail.Pack(error_details_pb2.BadRequest(field_violations=[violation]))
    proto = status_pb2.Status(code=code_pb2.INVALID_ARGUMENT, message=f"{error}.", details=[detail])
    status = rpc_status.to_status(proto)
    await context.abort(status.code, status.details, status.trailing_metadata)
    raise AssertionError("abort() raises")


async def _abort_not_found(context: Any, kind: str, name: str, known: list[str]) -> NoReturn:
    listed = ", ".join(known[:50]) or "none"
    await context.abort(grpc.StatusCode.NOT_FOUND, f"There is no {kind} {name!r}; there are: {listed}.")
    raise AssertionError("abort() raises")

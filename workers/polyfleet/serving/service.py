"""`polyfleet.v1.Worker` over gRPC: thin, every decision is the Worker's."""

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import grpc

from polyfleet.process.logs import log_fields
from polyfleet.process.tasks import end
from polyfleet.serving.adapters import NoModel
from polyfleet.serving.engine_client import LoadError
from polyfleet.serving.inspection import ImaginedSite, InspectionError, InspectionRequest, inspect
from polyfleet.serving.log_tail import MAX_LINES, TAIL
from polyfleet.serving.session import GatewaySession
from polyfleet.serving.worker import LoadSpec, Worker, WorkerRefusal
from polyfleet.v1 import worker_pb2 as pb
from polyfleet.v1 import worker_pb2_grpc
from polyfleet.v1.operations_pb2 import TailLogRequest, TailLogResponse
from polyfleet.wire.adapters import check_adapters
from polyfleet.wire.limits import FieldError
from polyfleet.wire.options import options_in

log = logging.getLogger(__name__)

HEARTBEAT_SECONDS = 0.5


class WorkerService(worker_pb2_grpc.WorkerServicer):  # type: ignore[misc]
    """The methods of `worker.proto`, whose comments are their contract."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._inspecting = asyncio.Lock()

    async def Session(self, requests: AsyncIterator[pb.SessionCommand], context: Any) -> None:
        """Relay one gateway's commands and news until either side ends it."""
        first = await anext(aiter(requests), None)
        if first is None or not first.hello.gateway_id:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "hello.gateway_id: must come first and not be empty")
            return
        session = self._worker.admission.open_session()
        reader = asyncio.create_task(self._read_commands(session, requests))
        with log_fields(gateway_id=first.hello.gateway_id):
            log.info("Session opened.")
            try:
                await context.write(self._event(session, []))
                while not session.closed:
                    deltas = await session.take(HEARTBEAT_SECONDS)
                    await context.write(self._event(session, deltas))
                if reader.done():
                    reader.result()  # a fault of ours must not look like a good end
            finally:
                self._worker.admission.close_session(session)
                await end(reader)
                log.info("Session closed.")

    def _event(self, session: GatewaySession, deltas: list[pb.SequenceDelta]) -> pb.SessionEvent:
        status = self._worker.status()
        offer = self._worker.transfers.offer
        told = None
        if offer != session.offer:
            session.offer = offer
            told = pb.TransferOffer(address=offer.address, local=offer.local, key=offer.key)
        return pb.SessionEvent(
            deltas=deltas,
            status=status,
            reported_starts=session.reported_starts,
            prefix_news=session.prefixes.news(),
            read_commands=session.num_commands,
            transfer=told,
        )

    async def _read_commands(self, session: GatewaySession, requests: AsyncIterator[pb.SessionCommand]) -> None:
        try:
            async for command in requests:
                session.num_commands += 1
                kind = command.WhichOneof("command")
                if kind == "start":
                    await session.room()
                    self._worker.admission.start(session, command.start, command.grains)
                elif kind == "cancel":
                    self._worker.admission.cancel(session, command.cancel.sequence_id)
                elif kind == "resync_prefixes":
                    session.prefixes.resync()
        finally:
            session.close()

    async def Load(self, request: pb.LoadRequest, context: Any) -> None:
        """Load and stream how far it is; the last message carries the model. Goes on when the caller leaves."""
        name = request.model_name or request.deployment
        if not request.source or not name:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "source, model_name: must not be empty")
        try:
            options_in(request.options)
        except FieldError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"options.{error}")
        steps: asyncio.Queue[pb.LoadProgress | None] = asyncio.Queue()
        spec = LoadSpec(request.source, name, request.deployment, request.options)
        load = asyncio.create_task(self._worker.load(spec, lambda *step: steps.put_nowait(_progress(*step))))
        load.add_done_callback(lambda _: steps.put_nowait(None))
        told: pb.LoadProgress | None = None
        try:
            while (step := await steps.get()) is not None:
                if step != told:  # a phase that goes on says so again and again
                    await context.write(step)
                told = step
            await context.write(pb.LoadProgress(progress=1.0, phase="ready", model=await load))
        except (LoadError, WorkerRefusal) as error:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        finally:
            await end(load)

    async def SetAdapters(self, request: pb.SetAdaptersRequest, context: Any) -> pb.SetAdaptersResponse:
        """Load and drop; one that can't be loaded is no error of the call."""
        try:
            check_adapters(request.adapters)
        except FieldError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        try:
            return pb.SetAdaptersResponse(adapters=await self._worker.adapters.set(request.adapters))
        except NoModel as error:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
            raise

    async def Unload(self, request: pb.UnloadRequest, context: Any) -> pb.UnloadResponse:
        """Free the model."""
        await self._worker.unload()
        return pb.UnloadResponse()

    async def Status(self, request: pb.StatusRequest, context: Any) -> pb.StatusResponse:
        """Info and status."""
        return pb.StatusResponse(info=self._worker.info(), status=self._worker.status())

    async def TailLog(self, request: TailLogRequest, context: Any) -> TailLogResponse:
        """The last lines."""
        return TailLogResponse(lines=TAIL.last(min(request.lines, MAX_LINES)))

    async def Inspect(self, request: pb.InspectRequest, context: Any) -> pb.InspectResponse:
        """Look at one model at a time."""
        if self._inspecting.locked():
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "It looks at another model: ask again.")
        try:
            options = options_in(request.options)
        except FieldError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"options.{error}")
            raise
        sites = tuple(ImaginedSite(each.accelerator, each.name, each.memory_bytes) for each in request.sites)
        try:
            async with self._inspecting:
                return pb.InspectResponse(inspection=await inspect(InspectionRequest(request.source, options, sites)))
        except InspectionError as error:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
            raise

    async def Drain(self, request: pb.WorkerDrainRequest, context: Any) -> pb.WorkerDrainResponse:
        """Drain, and leave when asked."""
        return pb.WorkerDrainResponse(running_sequences=self._worker.drain(leave=request.exit))


def _progress(progress: float, phase: str) -> pb.LoadProgress:
    return pb.LoadProgress(progress=progress, phase=phase)

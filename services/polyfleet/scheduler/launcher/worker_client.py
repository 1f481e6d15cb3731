"""The few calls that a launcher makes on its worker over gRPC."""

from collections.abc import Iterable
from typing import Any

from polyfleet.process.channels import FleetAccess
from polyfleet.process.keys import Role
from polyfleet.v1 import fleet_pb2 as fleet
from polyfleet.v1 import worker_pb2 as pb
from polyfleet.v1 import worker_pb2_grpc
from polyfleet.v1.operations_pb2 import TailLogRequest, TailLogResponse

CALL_SECONDS = 3.0
INSPECT_SECONDS = 125.0  # a worker gives up after 120


class WorkerClient:
    """One worker's `Worker` service. Every method raises grpc.aio.AioRpcError when the call fails."""

    def __init__(self, address: str, access: FleetAccess) -> None:
        self._channel: Any = access.channel(address, Role.WORKER)
        self._stub: Any = worker_pb2_grpc.WorkerStub(self._channel)
        self._metadata = access.metadata

    async def __aenter__(self) -> "WorkerClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._channel.close()

    async def status(self) -> pb.StatusResponse:
        """Info and status."""
        answer: pb.StatusResponse = await self._stub.Status(
            pb.StatusRequest(), timeout=CALL_SECONDS, metadata=self._metadata
        )
        return answer

    async def load(self, request: pb.LoadRequest) -> None:
        """Load a model and wait until it is ready, however long that takes."""
        async for _ in self._stub.Load(request, metadata=self._metadata):
            pass

    async def set_adapters(self, adapters: Iterable[fleet.Adapter], seconds: float) -> list[fleet.Adapter]:
        """Have it serve these and no others; what has become of each."""
        request = pb.SetAdaptersRequest(adapters=adapters)
        answer = await self._stub.SetAdapters(request, timeout=seconds, metadata=self._metadata)
        return list(answer.adapters)

    async def tail_log(self, lines: int) -> TailLogResponse:
        """The last lines that it has logged."""
        request = TailLogRequest(lines=lines)
        answer: TailLogResponse = await self._stub.TailLog(request, timeout=CALL_SECONDS, metadata=self._metadata)
        return answer

    async def inspect(self, request: pb.InspectRequest) -> str:
        """What a model is and how it fits the request's sites, in JSON."""
        answer = await self._stub.Inspect(request, timeout=INSPECT_SECONDS, metadata=self._metadata)
        return str(answer.inspection)

    async def unload(self) -> None:
        """Cancel what runs and free the model."""
        await self._stub.Unload(pb.UnloadRequest(), metadata=self._metadata)

    async def drain(self, *, leave: bool) -> None:
        """Let it take nothing new; with `leave` its process ends once it is quiet."""
        request = pb.WorkerDrainRequest(exit=leave)
        await self._stub.Drain(request, timeout=CALL_SECONDS, metadata=self._metadata)

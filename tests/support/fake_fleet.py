"""A Fleet service that only listens to registrations, for tests of workers; it can come and go at one port."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc

from polyfleet.v1 import fleet_pb2 as pb
from polyfleet.v1 import fleet_pb2_grpc
from polyfleet.v1.operations_pb2 import DeviceReport


class FakeFleet(fleet_pb2_grpc.FleetServicer):  # type: ignore[misc]
    """Records what workers send; answers once, asks for `want_asset` when a worker announces that hash.

    `async with FakeFleet() as fleet`: `fleet.address`, `fleet.infos`, `fleet.statuses`, `fleet.asset`, `fleet.tokens`.
    """

    def __init__(self, port: int = 0, *, want_assets: bool = False) -> None:
        self.port = port
        self.want_assets = want_assets
        self.infos: list[pb.WorkerInfo] = []
        self.statuses: list[pb.WorkerStatus] = []
        self.registered = 0  # streams that are open
        self.devices: list[DeviceReport] = []
        self.asset = b""
        self.asset_chunks = 0
        self.tokens: list[str] = []  # authorization metadata of each registration
        self._heard = asyncio.Event()
        self._stop = asyncio.Event()
        self._server: Any = None

    @property
    def address(self) -> str:
        """host:port."""
        return f"127.0.0.1:{self.port}"

    async def __aenter__(self) -> "FakeFleet":
        self._server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        fleet_pb2_grpc.add_FleetServicer_to_server(self, self._server)
        self.port = self._server.add_insecure_port(self.address)
        await self._server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.stop(0)

    async def Register(self, requests: AsyncIterator[pb.RegisterRequest], context: Any) -> None:
        """Record one worker's stream."""
        metadata = {key: str(value) for key, value in context.invocation_metadata()}
        self.tokens.append(metadata.get("authorization", ""))
        stopper = asyncio.create_task(self._send_stop(context))
        wanted = False
        self.registered += 1
        try:
            await context.write(pb.RegisterResponse(scheduler_epoch="e-1"))
            async for request in requests:
                if request.HasField("info"):
                    self.infos.append(request.info)
                    digest = request.info.model.tokenizer_hash
                    if self.want_assets and digest and not wanted:
                        wanted = True
                        await context.write(pb.RegisterResponse(scheduler_epoch="e-1", want_asset=digest))
                elif request.HasField("status"):
                    self.statuses.append(request.status)
                elif request.HasField("devices"):
                    self.devices.append(request.devices)
                else:
                    self.asset += request.asset.data
                    self.asset_chunks += 1
                self._heard.set()
        finally:
            self.registered -= 1
            self._heard.set()
            stopper.cancel()

    async def _send_stop(self, context: Any) -> None:
        await self._stop.wait()
        await context.write(pb.RegisterResponse(scheduler_epoch="e-1", stop=True))

    def stop_workers(self) -> None:
        """Tell every registered worker that it is not wanted."""
        self._stop.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until what was heard makes `condition` true."""
        while not condition():
            self._heard.clear()
            await self._heard.wait()

    def states(self) -> list[str]:
        """The reported states, repetitions left out."""
        names = [pb.WorkerState.Name(status.state).removeprefix("WORKER_STATE_") for status in self.statuses]
        return [name for name, before in zip(names, [None, *names], strict=False) if name != before]

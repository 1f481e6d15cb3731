"""The fake worker's side of `Fleet.Register`: announce, report, send tokenizer assets, obey `stop`; for ever."""

import asyncio
import contextlib
from collections.abc import Iterator
from hashlib import sha256
from typing import Any, Protocol

import grpc

from polyfleet.process.within import Within
from polyfleet.v1 import fleet_pb2 as pb
from polyfleet.v1 import fleet_pb2_grpc
from polyfleet.wire.limits import ASSET_CHUNK_BYTES

REPORT_SECONDS = 0.5
REDIAL_SECONDS = 0.2


class Registrant(Protocol):
    """What registration needs of a fake worker."""

    fleet: str
    fleet_token: str
    assets: bytes
    registrations: int
    changed: asyncio.Event

    def info(self) -> pb.WorkerInfo: ...

    def status(self) -> pb.WorkerStatus: ...

    def stop_wanted(self) -> None: ...


class FakeRegistration:
    """Dials again 0.2 s after each end of the stream."""

    def __init__(self, worker: Registrant) -> None:
        self._worker = worker
        self._write = asyncio.Lock()  # gRPC takes one write at a time

    async def run(self) -> None:
        """Until cancelled."""
        token = self._worker.fleet_token
        metadata = (("authorization", f"Bearer {token}"),) if token else ()
        while True:
            options = [("grpc.use_local_subchannel_pool", 1)]
            async with grpc.aio.insecure_channel(self._worker.fleet, options=options) as channel:
                call = fleet_pb2_grpc.FleetStub(channel).Register(metadata=metadata)
                with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                    await self._report(call)
            await asyncio.sleep(REDIAL_SECONDS)

    async def _send(self, call: Any, message: pb.RegisterRequest) -> None:
        async with self._write:
            await call.write(message)

    async def _report(self, call: Any) -> None:
        announced = self._worker.info()
        await self._send(call, pb.RegisterRequest(info=announced))
        answers = asyncio.create_task(self._answer(call))
        try:
            while not answers.done():
                self._worker.changed.clear()
                if announced != self._worker.info():
                    announced = self._worker.info()
                    await self._send(call, pb.RegisterRequest(info=announced))
                await self._send(call, pb.RegisterRequest(status=self._worker.status()))
                with contextlib.suppress(asyncio.TimeoutError), Within(REPORT_SECONDS):
                    await self._worker.changed.wait()
        finally:
            answers.cancel()
            await asyncio.gather(answers, return_exceptions=True)

    async def _answer(self, call: Any) -> None:
        async for answer in call:
            self._worker.registrations += 1
            if answer.want_asset:
                for chunk in asset_chunks(self._worker.assets):
                    await self._send(call, pb.RegisterRequest(asset=chunk))
            if answer.stop:
                self._worker.stop_wanted()


def asset_chunks(document: bytes) -> Iterator[pb.AssetChunk]:
    """A document as the Fleet receives it."""
    digest = sha256(document).hexdigest()
    for start in range(0, len(document), ASSET_CHUNK_BYTES):
        data = document[start : start + ASSET_CHUNK_BYTES]
        yield pb.AssetChunk(hash=digest, total_bytes=len(document), data=data)

"""The scheduler's side that gateways see: snapshots and tokenizers, published by the test; it can come and go."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from hashlib import sha256
from typing import Any

import grpc
from tests.support.fake_registration import asset_chunks

from polyfleet.v1 import fleet_pb2 as pb
from polyfleet.v1 import fleet_pb2_grpc


class SnapshotFleet(fleet_pb2_grpc.FleetServicer):  # type: ignore[misc]
    """`async with SnapshotFleet() as fleet`: set `workers` and `deployments`, then `publish()`.

    `assets` holds tokenizer documents by hash; `stop()` and `start()` are an outage; `epoch` names its life.
    """

    def __init__(self) -> None:
        self.port = 0
        self.epoch, self.generation = "e-1", 0
        self.workers: dict[str, pb.FleetWorker] = {}
        self.deployments: list[pb.ModelDeployment] = []
        self.assets: dict[str, bytes] = {}
        self.corrupt = False  # send other bytes than the hash promises
        self.tokens: list[str] = []  # authorization metadata of each call
        self.fetched = 0
        self.reports: list[pb.ReportUsageRequest] = []
        self.leases: list[pb.TenantLease] = []  # the answer to each report
        self._version = 0
        self._watchers: set[asyncio.Queue[pb.FleetSnapshot]] = set()
        self._server: Any = None

    @property
    def address(self) -> str:
        """host:port."""
        return f"127.0.0.1:{self.port}"

    async def __aenter__(self) -> "SnapshotFleet":
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Listen, on the same port as before."""
        self._server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        fleet_pb2_grpc.add_FleetServicer_to_server(self, self._server)
        self.port = self._server.add_insecure_port(self.address)
        await self._server.start()

    async def stop(self) -> None:
        """Gone at once."""
        await self._server.stop(0)

    def add_assets(self, document: bytes) -> str:
        """Hold a tokenizer document; its hash."""
        content_hash = sha256(document).hexdigest()
        self.assets[content_hash] = document
        return content_hash

    def snapshot(self) -> pb.FleetSnapshot:
        """The picture now."""
        return pb.FleetSnapshot(
            scheduler_epoch=self.epoch,
            version=self._version,
            generation=self.generation,
            workers=list(self.workers.values()),
            deployments=self.deployments,
        )

    def publish(self, workers: Sequence[pb.FleetWorker] | None = None) -> None:
        """Send the picture to every watcher; `workers` replaces those in it."""
        if workers is not None:
            self.workers = {each.info.worker_id: each for each in workers}
        self._version += 1
        for watcher in self._watchers:
            watcher.put_nowait(self.snapshot())

    async def WatchFleet(self, request: pb.WatchFleetRequest, context: Any) -> AsyncIterator[pb.FleetSnapshot]:
        """The picture now and at each publish."""
        self._note(context)
        watcher: asyncio.Queue[pb.FleetSnapshot] = asyncio.Queue()
        self._watchers.add(watcher)
        try:
            yield self.snapshot()
            while True:
                yield await watcher.get()
        finally:
            self._watchers.discard(watcher)

    async def GetTokenizer(self, request: pb.GetTokenizerRequest, context: Any) -> AsyncIterator[pb.AssetChunk]:
        """The document in chunks."""
        self._note(context)
        self.fetched += 1
        if request.hash not in self.assets:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such tokenizer")
        for chunk in self._chunks(self.assets[request.hash]):
            yield chunk

    async def ReportUsage(self, request: pb.ReportUsageRequest, context: Any) -> pb.ReportUsageResponse:
        """The leases that the test sets."""
        self.reports.append(request)
        return pb.ReportUsageResponse(leases=self.leases)

    def _chunks(self, document: bytes) -> Iterator[pb.AssetChunk]:
        return asset_chunks(document[:-1] + b" " if self.corrupt else document)

    def _note(self, context: Any) -> None:
        self.tokens.append(dict(context.invocation_metadata() or ()).get("authorization", ""))

"""The gateway's line to the scheduler: snapshots as they come, tokenizers by hash. The gateway lives on without it."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc

from polyfleet.gateway.fleet.asset_fetch import fetch_asset
from polyfleet.gateway.fleet.lives import Lives
from polyfleet.process.channels import FLEET_CHANNEL, FleetAccess
from polyfleet.process.keys import Role
from polyfleet.process.within import Within
from polyfleet.v1 import fleet_pb2, fleet_pb2_grpc
from polyfleet.wire.limits import GRPC_MAX_MESSAGE_BYTES, MAX_SNAPSHOT_BYTES

SILENCE_SECONDS = 10.0  # the scheduler sends a snapshot every 2 s
REDIAL_SECONDS = (0.1, 1.0)  # first and longest pause
REPORT_TIMEOUT_SECONDS = 5.0
REPLACED = "another scheduler has replaced it"
log = logging.getLogger(__name__)


class SchedulerLink:
    """Calls `Fleet` at `address` (host:port); `access` is what it shows."""

    def __init__(self, address: str, gateway_id: str, access: FleetAccess | None = None) -> None:
        self._address = address
        self._gateway_id = gateway_id
        self._access = access or FleetAccess()
        self._metadata = self._access.metadata
        self.connected = False  # whether snapshots come now
        self._lives = Lives()

    def _channel(self) -> Any:
        options = [
            *FLEET_CHANNEL,
            ("grpc.max_receive_message_length", MAX_SNAPSHOT_BYTES),
            ("grpc.max_send_message_length", GRPC_MAX_MESSAGE_BYTES),
        ]
        return self._access.channel(self._address, Role.SCHEDULER, options)

    async def watch(self, apply: Callable[[fleet_pb2.FleetSnapshotParts], None]) -> None:
        """Give every snapshot to `apply`; dial again, for ever, when the stream breaks. Runs until cancelled.

        Of two schedulers on one state, as a partition leaves them, the one that began later is listened to.
        """
        pause, longest = REDIAL_SECONDS
        told = ""  # what keeps it from being heard, as the log has it
        while True:
            problem = "it ended the stream"
            try:
                async for snapshot in self._snapshots():
                    if not self._lives.admits(snapshot.generation, asyncio.get_running_loop().time()):
                        problem = REPLACED
                        break
                    if told:
                        log.info("The scheduler is back.", extra={"fleet": self._address})
                    pause, told, self.connected = REDIAL_SECONDS[0], "", True
                    apply(snapshot)
            except grpc.aio.AioRpcError as error:
                problem = error.details() or error.code().name
            except asyncio.TimeoutError:
                problem = f"no news for {SILENCE_SECONDS:g} s"
            except Exception:  # a fault of ours ends this stream, not the redialling
                log.exception("A snapshot was not understood.")
            self.connected = False
            if not told or (problem == REPLACED != told):
                log.warning("No scheduler, going on without: %s.", problem, extra={"fleet": self._address})
                told = problem
            await asyncio.sleep(pause)
            pause = min(2 * pause, longest)

    async def _snapshots(self) -> AsyncIterator[fleet_pb2.FleetSnapshotParts]:
        async with self._channel() as channel:
            request = fleet_pb2.WatchFleetRequest(gateway_id=self._gateway_id, partial=True)
            watch = channel.unary_stream(
                "/polyfleet.v1.Fleet/WatchFleet",  # by name, since the stub would decode every worker
                request_serializer=fleet_pb2.WatchFleetRequest.SerializeToString,
                response_deserializer=fleet_pb2.FleetSnapshotParts.FromString,
            )
            call = watch(request, metadata=self._metadata)
            while True:
                with Within(SILENCE_SECONDS):
                    snapshot = await call.read()
                if not isinstance(snapshot, fleet_pb2.FleetSnapshotParts):
                    return
                yield snapshot

    async def report_usage(self, request: fleet_pb2.ReportUsageRequest) -> fleet_pb2.ReportUsageResponse:
        """Tell what was used; gives what may be. Raises grpc.aio.AioRpcError."""
        request.gateway_id = self._gateway_id
        async with self._channel() as channel:
            stub = fleet_pb2_grpc.FleetStub(channel)
            answer = await stub.ReportUsage(request, metadata=self._metadata, timeout=REPORT_TIMEOUT_SECONDS)
        assert isinstance(answer, fleet_pb2.ReportUsageResponse)
        return answer

    async def tokenizer(self, content_hash: str) -> bytes:
        """The assets document of this sha256. Raises AssetError or grpc.aio.AioRpcError."""
        async with self._channel() as channel:
            return await fetch_asset(channel, self._metadata, content_hash)

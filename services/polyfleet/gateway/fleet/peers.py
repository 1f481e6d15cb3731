"""What gateways tell each other while the scheduler is away: the fleet as each heard of it last, tokenizers by hash."""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from typing import Any

import grpc

from polyfleet.convert.assets import asset_chunks
from polyfleet.gateway.fleet.asset_fetch import AssetError, fetch_asset
from polyfleet.process.channels import FLEET_CHANNEL, FleetAccess
from polyfleet.process.keys import Role
from polyfleet.v1 import fleet_pb2 as pb
from polyfleet.v1 import fleet_pb2_grpc
from polyfleet.wire.auth import join_host_port, split_host_port
from polyfleet.wire.limits import MAX_SNAPSHOT_BYTES

LOOK_SECONDS = 2.0  # between questions
ANSWER_SECONDS = 5.0
MAX_PEERS = 16  # that are asked in turn
OPTIONS = (*FLEET_CHANNEL, ("grpc.max_receive_message_length", MAX_SNAPSHOT_BYTES))
log = logging.getLogger(__name__)


class PeerService(fleet_pb2_grpc.FleetServicer):  # type: ignore[misc]
    """The part of `Fleet` that a gateway answers to others. `heard`: None before the scheduler or a peer told."""

    def __init__(self, heard: Callable[[], pb.FleetSnapshot | None], document: Callable[[str], bytes | None]) -> None:
        self._heard, self._document = heard, document

    async def ListWorkers(self, request: pb.ListWorkersRequest, context: Any) -> pb.FleetSnapshot:
        """As this gateway heard it last."""
        if (snapshot := self._heard()) is None:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "This gateway has not heard of the fleet yet.")
            raise AssertionError("abort() raises")
        return snapshot

    async def GetTokenizer(self, request: pb.GetTokenizerRequest, context: Any) -> AsyncIterator[pb.AssetChunk]:
        """One that this gateway uses."""
        if (document := self._document(request.hash)) is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"This gateway has no tokenizer {request.hash!r:.80}.")
            return
        for chunk in asset_chunks(request.hash, document):
            yield chunk


class Peers:
    """The other gateways, at `names` (host:port; every address of a host is asked)."""

    def __init__(self, names: Sequence[str], access: FleetAccess) -> None:
        self._names, self._access = names, access

    async def follow(self, alone: Callable[[], bool], offer: Callable[[pb.FleetSnapshot], bool]) -> None:
        """While `alone` (the scheduler can't be heard) offer what they say; until cancelled. `offer`: was it news?"""
        while self._names:
            if alone():
                for address in await self._addresses():
                    with suppress(grpc.aio.AioRpcError):
                        if offer(await self._ask(address)):
                            log.info("Another gateway told of the fleet.", extra={"peer": address})
            await asyncio.sleep(LOOK_SECONDS)

    async def _ask(self, address: str) -> pb.FleetSnapshot:
        async with self._channel(address) as channel:
            stub = fleet_pb2_grpc.FleetStub(channel)
            request = pb.ListWorkersRequest()
            answer = await stub.ListWorkers(request, metadata=self._access.metadata, timeout=ANSWER_SECONDS)
        assert isinstance(answer, pb.FleetSnapshot)
        return answer

    async def tokenizer(self, content_hash: str) -> bytes | None:
        """The assets document of this sha256, of the first one that has it."""
        for address in await self._addresses():
            with suppress(grpc.aio.AioRpcError, AssetError):
                async with self._channel(address) as channel:
                    return await fetch_asset(channel, self._access.metadata, content_hash)
        return None

    def _channel(self, address: str) -> Any:
        return self._access.channel(address, Role.GATEWAY, OPTIONS)

    async def _addresses(self) -> list[str]:
        found = dict[str, None]()
        for name in self._names:
            host, port = split_host_port(name)
            with suppress(OSError):
                infos = await asyncio.get_running_loop().getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
                found |= dict.fromkeys(join_host_port(str(info[4][0]), int(port)) for info in infos)
        return [*found][:MAX_PEERS]

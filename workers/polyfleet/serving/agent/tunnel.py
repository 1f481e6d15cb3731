"""An agent's side of `Agents`: it joins at a gateway for ever, and carries connections to its worker and to Fleet.

Whoever dials the fleet on this host dials `fleet_address`, which leads there while the agent has joined.
"""

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import AsyncIterator, Callable
from importlib.metadata import version
from typing import Any

import grpc

from polyfleet.process.carrying import BEAT_SECONDS, Silence, carry, first_of
from polyfleet.process.channels import FLEET_CHANNEL, FleetAccess
from polyfleet.process.tasks import Tasks
from polyfleet.process.unreached import roots_in, tls_problem
from polyfleet.process.within import Within
from polyfleet.serving.agent.config import JoinConfig
from polyfleet.v1 import agents_pb2 as pb
from polyfleet.v1 import agents_pb2_grpc
from polyfleet.wire.auth import split_host_port

SILENT_SECONDS = 5.0  # a gateway sends something every second
DIAL_SECONDS = 2.0  # for the connection, or another one is tried: a packet that was lost is not waited for
TAKEN_SECONDS = 5.0  # that a gateway has at most for the last bytes of a connection
FIRST_REDIAL_SECONDS, LAST_REDIAL_SECONDS = 0.2, 1.0
Code = grpc.StatusCode
log = logging.getLogger(__name__)


class Tunnel:
    """Joins as `name`; `process` names this life. `joined` is told the worker's address in the fleet, and that of its
    `/metrics`, empty where the gateway carries none. Raises ConfigError when the roots can't be used.
    """

    def __init__(
        self, join: JoinConfig, access: FleetAccess, name: str, process: str, joined: Callable[[str, str], None]
    ) -> None:
        self._join, self._access, self._metadata = join, access, access.metadata
        self._credentials = _credentials(join)
        self._name, self._process, self._joined = name, process, joined
        self._worker = self._metrics = ("", 0)
        self._stub: Any = None  # of the gateway that was joined
        self._session = ""
        self.up = asyncio.Event()  # while it has joined
        self._stale = asyncio.Event()  # the gateway does not know the session any more
        self._carried = Tasks()  # the connections to the worker, and those to Fleet
        self._server: asyncio.Server | None = None
        self.fleet_address = ""

    async def open(self, worker_address: str, metrics_address: str) -> None:
        """Listen for those who dial the fleet. The addresses are the worker's and its `/metrics`', on this host."""
        self._worker, self._metrics = (
            (host, int(port)) for host, port in map(split_host_port, (worker_address, metrics_address))
        )
        self._server = await asyncio.start_server(self._dialled, "127.0.0.1", 0)
        self.fleet_address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def run(self) -> None:
        """Join, carry, join again; until cancelled."""
        pause, told = FIRST_REDIAL_SECONDS, set[str]()
        try:
            while True:
                try:
                    reason = await self._stay()
                except Exception:  # a fault of ours ends this joining, not the next
                    log.exception("What is carried failed.")
                    reason = "this agent failed"
                was_joined, self._session = self.up.is_set(), ""
                self.up.clear()
                pause = FIRST_REDIAL_SECONDS if was_joined else pause
                told = set() if was_joined else told
                level = logging.DEBUG if reason in told else logging.WARNING
                log.log(level, "Not joined at %s: %s", self._join.address, reason)
                told.add(reason)
                await asyncio.sleep(pause * random.uniform(0.5, 1.0))
                pause = min(pause * 2, LAST_REDIAL_SECONDS)
        finally:
            if self._server is not None:
                self._server.close()

    async def _stay(self) -> str:
        """Join once and carry until that ends; why it ended."""
        self._stale.clear()
        async with self._channel() as channel:
            self._metadata = self._access.current_metadata()
            self._stub = agents_pb2_grpc.AgentsStub(channel)
            call = self._stub.Join(metadata=self._metadata)
            try:
                with Within(DIAL_SECONDS):
                    await self._introduce(call)
            except asyncio.TimeoutError:
                return f"it does not answer within {DIAL_SECONDS:g} s."
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                reason = await _end_of(call)
                return tls_problem(reason, self._join.address) or reason
            silence = Silence(SILENT_SECONDS)
            jobs = self._beat(call), self._hear(call, silence), silence.lasts(), self._until_stale()
            try:
                await first_of(*map(asyncio.ensure_future, jobs))
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                pass  # the call tells why
            finally:
                await self._carried.end()
            return await _end_of(call) if call.done() else "the gateway is silent, or knows this agent no more"

    def _channel(self) -> Any:
        """Each dial is a new connection, which gRPC does not make again by itself."""
        options = (*FLEET_CHANNEL, ("grpc.enable_retries", 0), ("grpc.max_receive_message_length", 1 << 20))
        if self._credentials is None:
            return grpc.aio.insecure_channel(self._join.address, options=options)
        return grpc.aio.secure_channel(self._join.address, self._credentials, options=options)

    async def _introduce(self, call: Any) -> None:
        named = {"name": self._name, "process": self._process, "version": version("polyfleet")}
        await call.write(pb.JoinRequest(agent=pb.Agent(unix_seconds=time.time(), **named)))

    @staticmethod
    async def _beat(call: Any) -> None:
        while True:
            await asyncio.sleep(BEAT_SECONDS)
            await call.write(pb.JoinRequest())

    async def _hear(self, call: Any, silence: Silence) -> None:
        async for message in call:
            silence.broken()
            if message.session:
                log.info("Joined at %s.", self._join.address, extra={"worker_address": message.worker_address})
                self._session = message.session
                self._joined(message.worker_address, message.metrics_address)
                self.up.set()
            if message.connection:
                self._carried.start(self._take(message.connection, self._metrics if message.metrics else self._worker))

    async def _until_stale(self) -> None:
        await self._stale.wait()

    async def _take(self, number: int, target: tuple[str, int]) -> None:
        """Carry what somebody dialled at the gateway to the worker."""
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection(*target)
            await self._carry(number, reader, writer)

    async def _dialled(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry what somebody dialled here to Fleet."""
        if not self._session:
            writer.transport.abort()
            return
        self._carried.start(self._carry(0, reader, writer))

    async def _carry(self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        call = self._stub.Carry(metadata=self._metadata)

        async def until_taken() -> None:  # a call that is cancelled at once overtakes the last bytes
            await call.done_writing()
            await asyncio.sleep(TAKEN_SECONDS)

        try:
            await call.write(pb.CarriedBytes(session=self._session, connection=number))
            await carry(reader, writer, _messages(call), call.write, until_taken)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            if await call.code() is Code.FAILED_PRECONDITION:
                self._stale.set()
        finally:
            call.cancel()
            writer.close()


async def _end_of(call: Any) -> str:
    """Why a call has ended, in one sentence."""
    code = await call.code()
    if code is Code.UNIMPLEMENTED:
        return "it is no gateway: --join wants the gRPC port of one"
    return str(await call.details() or code.name)


async def _messages(call: Any) -> AsyncIterator[pb.CarriedBytes]:
    async for message in call:
        yield message


def _credentials(join: JoinConfig) -> grpc.ChannelCredentials | None:
    if not join.tls and join.ca_file is None:
        return None
    return grpc.ssl_channel_credentials(roots_in(join.ca_file) if join.ca_file else None)

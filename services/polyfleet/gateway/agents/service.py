"""`polyfleet.v1.Agents` over gRPC: agents join, and carry the connections that are theirs."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc

from polyfleet.gateway.agents.relay import AgentRelay, Connection, FullRelay, JoinedAgent, TakenName
from polyfleet.process.carrying import BEAT_SECONDS, Silence, carry, first_of
from polyfleet.process.refusing import Objection
from polyfleet.process.within import Within
from polyfleet.v1 import agents_pb2 as pb
from polyfleet.v1 import agents_pb2_grpc
from polyfleet.wire.auth import Metadata
from polyfleet.wire.limits import REQUEST_ID

AGENTS = pb.DESCRIPTOR.services_by_name["Agents"].full_name
FIRST_SECONDS = 10.0  # for the first message of a call
LOST_SECONDS = 15.0  # without a heartbeat
CLOCK_SECONDS = 60.0  # that an agent's may be wrong
Code = grpc.StatusCode


def agent_objection(objection: Objection, method: str, metadata: Metadata | None) -> str:
    """Why a call of Agents is refused, by the fleet's `objection`; empty for all other calls."""
    return objection(method, metadata) if method.startswith(f"/{AGENTS}/") else ""


def agent_problem(agent: pb.Agent, now: float) -> str:
    """What keeps an agent out, whose first message came at `now`, in seconds since 1970; empty: nothing."""
    ahead = agent.unix_seconds - now
    if abs(ahead) <= CLOCK_SECONDS:
        return ""
    way = "ahead of" if ahead > 0 else "behind"
    return f"The clock of {agent.name} is {abs(ahead):.0f} s {way} the gateway's: set it, by NTP say."


class AgentsService(agents_pb2_grpc.AgentsServicer):  # type: ignore[misc]
    """`draining` says whether no agent may join any more."""

    def __init__(self, relay: AgentRelay, draining: Callable[[], bool]) -> None:
        self._relay, self._draining = relay, draining

    async def Join(self, requests: AsyncIterator[pb.JoinRequest], context: Any) -> None:
        """Keep one agent's port open for as long as it is heard."""
        source = aiter(requests)
        agent = await self._first_agent(source, context)
        try:
            joined = await self._relay.admit(agent)
        except TakenName as error:
            await context.abort(Code.ALREADY_EXISTS, str(error))
        except FullRelay as error:
            await context.abort(Code.RESOURCE_EXHAUSTED, str(error))
        except OSError as error:
            await context.abort(Code.UNAVAILABLE, f"No port can be opened for {agent.name}: {error.strerror or error}.")
        silence = Silence(LOST_SECONDS)
        try:
            address, metrics = joined.address, joined.metrics_address
            first = pb.JoinResponse(session=joined.session, worker_address=address, metrics_address=metrics)
            await context.write(first)
            jobs = self._hear(source, silence), _tell(joined, context), silence.lasts(), _until_ended(joined)
            await first_of(*map(asyncio.ensure_future, jobs))
        finally:
            self._relay.leave(joined)
        if self._draining():
            await context.abort(Code.UNAVAILABLE, "This gateway is shutting down: join another one.")

    async def _first_agent(self, source: AsyncIterator[pb.JoinRequest], context: Any) -> pb.Agent:
        """Who it is; ends the call of one that can't join."""
        if self._draining():
            await context.abort(Code.UNAVAILABLE, "This gateway is shutting down: join another one.")
        request = await _first(source, context)
        agent: pb.Agent = request.agent
        if not REQUEST_ID.fullmatch(agent.name) or not agent.process:
            await context.abort(Code.INVALID_ARGUMENT, "agent: needs a process, and a name as ids of requests have.")
        if problem := agent_problem(agent, time.time()):
            await context.abort(Code.FAILED_PRECONDITION, problem)
        return agent

    @staticmethod
    async def _hear(source: AsyncIterator[pb.JoinRequest], silence: Silence) -> None:
        async for _ in source:
            silence.broken()

    async def Carry(self, messages: AsyncIterator[pb.CarriedBytes], context: Any) -> None:
        """Carry one connection: to the agent's worker, or from it to Fleet."""
        source = aiter(messages)
        first = await _first(source, context)
        joined = self._relay.find(first.session)
        if joined is None:
            await context.abort(Code.FAILED_PRECONDITION, "This gateway knows no such session: join again.")
            return
        if (connection := await self._connection(joined, first.connection)) is None:
            await context.abort(Code.NOT_FOUND, f"There is no connection {first.connection} of this session.")
            return
        await first_of(
            asyncio.ensure_future(carry(*connection, source, context.write)),
            asyncio.ensure_future(_until_ended(joined)),
        )

    async def _connection(self, joined: JoinedAgent, number: int) -> Connection | None:
        if number:
            return joined.take(number)
        try:
            with Within(FIRST_SECONDS):
                return await asyncio.open_connection(*self._relay.fleet)
        except (OSError, asyncio.TimeoutError):
            return None


async def _first(source: AsyncIterator[Any], context: Any) -> Any:
    try:
        with Within(FIRST_SECONDS):
            first = await anext(source, None)
    except asyncio.TimeoutError:
        first = None
    if first is None:
        await context.abort(Code.INVALID_ARGUMENT, f"The first message must come within {FIRST_SECONDS:g} s.")
    return first


async def _tell(joined: JoinedAgent, context: Any) -> None:
    """What is to be carried, as it comes, and a heartbeat."""
    while True:
        try:
            with Within(BEAT_SECONDS):
                message = await joined.opened.get()
        except asyncio.TimeoutError:
            message = pb.JoinResponse()
        await context.write(message)


async def _until_ended(joined: JoinedAgent) -> None:
    await joined.ended.wait()

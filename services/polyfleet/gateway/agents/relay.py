"""The agents that have joined at this gateway, each with a port that leads to its worker, and one to the worker's
`/metrics`. Bytes pass unread."""

import asyncio
import itertools
import logging
import secrets
from collections.abc import Callable
from functools import partial

from polyfleet.process.listening import own_address
from polyfleet.v1 import agents_pb2 as pb
from polyfleet.wire.auth import is_loopback, join_host_port, split_host_port

MAX_AGENTS = 256
MAX_WAITING = 64  # connections that an agent has not taken yet
TAKE_SECONDS = 10.0  # for it to take one
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]
log = logging.getLogger(__name__)


class TakenName(Exception):
    """Another process has joined under that name. The message is one sentence."""


class FullRelay(Exception):
    """There is no room for one more agent. The message is one sentence."""


class JoinedAgent:
    """One agent. `opened` tells of connections that wait for it to carry them."""

    def __init__(self, agent: pb.Agent) -> None:
        self.name, self.process = agent.name, agent.process
        self.session = secrets.token_hex(16)
        self.address = self.metrics_address = ""
        self.opened: asyncio.Queue[pb.JoinResponse] = asyncio.Queue()
        self.ended = asyncio.Event()
        self._numbers = itertools.count(1)
        self._waiting: dict[int, Connection] = {}
        self._servers: list[asyncio.Server] = []

    async def listen(self, host: str) -> None:
        """Open the ports. Raises OSError."""
        for connected in (self._connected, partial(self._connected, metrics=True)):
            self._servers.append(await asyncio.start_server(connected, host, 0))
        ports = (each.sockets[0].getsockname()[1] for each in self._servers)
        self.address, self.metrics_address = (join_host_port(host, port) for port in ports)

    def take(self, number: int) -> Connection | None:
        """The connection of that number, for its bytes to be carried; None when it is not there any more."""
        return self._waiting.pop(number, None)

    def end(self) -> None:
        """Close the ports and all that waits; what is carried ends with the agent's calls."""
        self.ended.set()
        for server in self._servers:
            server.close()
        for number in list(self._waiting):
            self._drop(number)

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, metrics: bool = False) -> None:
        if self.ended.is_set() or len(self._waiting) >= MAX_WAITING:
            writer.transport.abort()
            return
        number = next(self._numbers)
        self._waiting[number] = reader, writer
        self.opened.put_nowait(pb.JoinResponse(connection=number, metrics=metrics))
        asyncio.get_running_loop().call_later(TAKE_SECONDS, self._drop, number)

    def _drop(self, number: int) -> None:
        if (connection := self._waiting.pop(number, None)) is not None:
            connection[1].transport.abort()


class AgentRelay:
    """All of them. `fleet` is the scheduler's host:port: ports are opened where it, too, can reach them."""

    def __init__(self, fleet: str, host: Callable[[], str] = own_address) -> None:
        self.fleet = split_host_port(fleet)
        self._host = host
        self._agents: dict[str, JoinedAgent] = {}  # by session

    def __len__(self) -> int:
        """How many have joined."""
        return len(self._agents)

    def find(self, session: str) -> JoinedAgent | None:
        """The agent that was told this session."""
        return self._agents.get(session)

    async def admit(self, agent: pb.Agent) -> JoinedAgent:
        """Open ports for an agent. Its own earlier joining ends. Raises TakenName, FullRelay and OSError."""
        for each in list(self._agents.values()):
            if each.name != agent.name:
                continue
            if each.process != agent.process:
                raise TakenName(f"The name {agent.name!r} is taken: another agent has joined under it.")
            self.leave(each)
        if len(self._agents) >= MAX_AGENTS:
            raise FullRelay(f"This gateway carries {MAX_AGENTS} agents already: no more can join.")
        joined = JoinedAgent(agent)
        self._agents[joined.session] = joined
        try:
            await joined.listen("127.0.0.1" if is_loopback(self.fleet[0]) else self._host())
        except BaseException:
            self.leave(joined)
            raise
        log.info("An agent joined.", extra={"agent": joined.name, "address": joined.address})
        return joined

    def leave(self, agent: JoinedAgent) -> None:
        """It has gone. Does no harm a second time."""
        if self._agents.pop(agent.session, None) is not None:
            log.info("An agent left.", extra={"agent": agent.name})
        agent.end()

    def close(self) -> None:
        """All go, to join elsewhere."""
        for each in list(self._agents.values()):
            self.leave(each)

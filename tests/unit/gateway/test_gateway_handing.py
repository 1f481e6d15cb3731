"""Connections handed from the process that accepts them to those that serve them, with both ends in one process."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import ExitStack

import pytest
from tests.support.gateway_rig import until

from polyfleet.gateway.ports.handed import CLOSED, GIVEN, TAKEN, Handed
from polyfleet.gateway.ports.taking import Taking
from polyfleet.gateway.processes import handing
from polyfleet.gateway.processes.handing import Handing
from polyfleet.process.listening import open_socket


class Server:
    """One of the processes: keeps the connections that it takes."""

    def __init__(self, port: Handing) -> None:
        self.port, self.hand, self.here = port, port.join(), list[socket.socket]()
        self.source = Handed(self.hand.theirs)
        self.taking = Taking(self.source, lambda connection, _: self.here.append(connection))

    def serve(self) -> None:
        self.taking.go_on()
        self.port.ready(self.hand)

    def die(self) -> None:
        if self.hand.theirs.fileno() >= 0:
            self.taking.pause()
            for each in self.here:
                each.close()
            self.hand.theirs.close()


class Rig:
    """A port, and clients of it."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack, self.port = stack, Handing(open_socket("127.0.0.1:0", "--listen"))

    def servers(self, number: int) -> list[Server]:
        found = [Server(self.port) for _ in range(number)]
        for each in found:
            each.serve()
            self._stack.callback(each.die)
        return found

    def connect(self, number: int) -> list[socket.socket]:
        address = "127.0.0.1", self.port.port
        return [self._stack.enter_context(socket.create_connection(address, timeout=60)) for _ in range(number)]


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    with ExitStack() as stack:
        rig = Rig(stack)
        stack.callback(rig.port.close)
        yield rig


def counts(servers: list[Server]) -> list[int]:
    return [len(each.here) for each in servers]


@pytest.mark.parametrize("number", [16, 64, 66])
async def test_each_gets_as_many_as_the_others(rig: Rig, number: int) -> None:
    servers = rig.servers(4)
    rig.connect(number)
    await until(lambda: sum(counts(servers)) == number)
    assert max(counts(servers)) - min(counts(servers)) <= 1


async def test_whoever_has_the_fewest_now_gets_the_next_and_others_take_turns(rig: Rig) -> None:
    servers = rig.servers(3)
    rig.connect(9)
    await until(lambda: counts(servers) == [3, 3, 3])
    for each in servers[1].here:
        each.close()
    await until(lambda: servers[1].hand.open == 0)
    rig.connect(3)
    await until(lambda: counts(servers) == [3, 6, 3])
    for _ in range(3):  # connections that end before the next one comes
        for server in servers:
            for each in server.here:
                each.close()
        await until(lambda: not any(each.hand.open for each in servers))
        rig.connect(1)
        await until(lambda: any(each.hand.open for each in servers))
    assert sorted(counts(servers)) == [4, 4, 7]


async def test_connections_wait_until_somebody_can_serve(rig: Rig) -> None:
    clients = rig.connect(3)
    (server,) = rig.servers(1)
    await until(lambda: len(server.here) == 3)
    assert {each.getsockname() for each in clients} == {each.getpeername() for each in server.here}


async def test_those_that_one_has_not_taken_go_to_others_when_it_dies(rig: Rig) -> None:
    stopped, *others = rig.servers(4)
    stopped.taking.pause()
    clients = rig.connect(16)
    await until(lambda: counts(others) == [4, 4, 4])
    stopped.die()
    await until(lambda: sum(counts(others)) == 16)
    assert sorted(counts(others)) == [5, 5, 6]
    assert {each.getsockname() for each in clients} == {each.getpeername() for one in others for each in one.here}


async def test_one_that_takes_nothing_gets_no_more(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handing, "LATE_SECONDS", -1.0)
    stopped, other = rig.servers(2)
    stopped.taking.pause()
    rig.connect(1)
    await until(lambda: stopped.hand.open == 1)
    for number in range(1, 6):
        rig.connect(1)
        await until(lambda: len(other.here) == number)  # noqa: B023
    assert stopped.hand.open == 1


async def test_one_that_leaves_takes_what_it_was_given_and_others_what_comes_then(rig: Rig) -> None:
    leaving, other = rig.servers(2)
    leaving.taking.pause()
    rig.connect(4)
    await until(lambda: leaving.hand.open == 2)
    rig.port.leave(leaving.hand)
    rig.connect(3)
    await until(lambda: len(other.here) == 5)
    leaving.taking.finish()
    assert len(leaving.here) == 2


async def test_what_comes_at_the_last_moment_goes_to_others(rig: Rig) -> None:
    leaving, other = rig.servers(2)
    leaving.taking.pause()
    rig.connect(2)
    await until(lambda: leaving.hand.open == len(other.here) == 1)
    leaving.source.close()
    await until(lambda: len(other.here) == 2)
    rig.connect(1)
    await until(lambda: len(other.here) == 3)


async def test_a_full_channel_holds_nobody_up(rig: Rig) -> None:
    stopped, other = rig.servers(2)
    stopped.taking.pause()
    stopped.hand.ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
    rig.connect(60)
    await until(lambda: stopped.hand.open + len(other.here) == 60)
    assert 0 < stopped.hand.open < 30


async def test_a_connection_for_which_no_descriptor_is_left_is_given_up() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        source = Handed(theirs)
        ours.send(GIVEN)
        with pytest.raises(OSError, match="Too many open files"):
            source.accept()
        assert ours.recv(9) == TAKEN + CLOSED
        with pytest.raises(BlockingIOError):
            source.accept()


async def test_connections_outlive_whoever_gave_them(rig: Rig) -> None:
    (server,) = rig.servers(1)
    (client,) = rig.connect(1)
    await until(lambda: len(server.here) == 1)
    asyncio.get_running_loop().remove_reader(server.hand.ours)
    server.hand.ours.close()
    server.here[0].send(b"x")
    assert client.recv(1) == b"x"
    server.here[0].close()
    assert client.recv(1) == b""

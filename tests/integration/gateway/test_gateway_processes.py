"""`python -m polyfleet.gateway --processes 2`: one port, one fleet, one /metrics."""

import asyncio
import json
import signal
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any
from urllib.request import urlopen

import grpc
import psutil
import pytest
from tests.support.fake_worker import FakeWorker, fake_tokens
from tests.support.gateway_rig import VOCABULARY, Stream, text_worker, until
from tests.support.snapshot_fleet import SnapshotFleet

from polyfleet.gateway.processes.sums import parsed
from polyfleet.v1 import fleet_pb2, inference_pb2_grpc
from polyfleet.v1 import inference_pb2 as pb

ANY_PORTS = tuple(word for port in ("grpc", "http", "metrics") for word in (f"--{port}-listen", "127.0.0.1:0"))
TOKENS = 150
HURRIED_SECONDS = 0.01
REQUEST = pb.GenerateRequest(token_ids=[4, 5], max_tokens=TOKENS)


class RunningFront:
    """The one process and, by their pids, those that it has started."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process, self.children, self.ports = process, list[int](), dict[str, int]()

    async def read(self) -> None:
        """Its log, to the end."""
        assert self.process.stderr is not None
        async for line in self.process.stderr:
            said = json.loads(line)
            if said["message"] == "A gateway process listens.":
                self.children.append(said["child"])
            elif said["message"] == "The gateway's processes listen.":
                self.ports = said

    def connections(self, child: int, port: str = "grpc_port") -> int:
        """Of callers, that this child has."""
        found = psutil.Process(child).net_connections("tcp")
        return sum(each.status == psutil.CONN_ESTABLISHED and each.laddr.port == self.ports[port] for each in found)

    def spread(self, port: str = "grpc_port") -> list[int]:
        """How many each has, the fewest first."""
        return sorted(self.connections(each, port) for each in self.children)

    def counted(self) -> float:
        """Requests that ended well, as /metrics of all has them."""
        text = urlopen(f"http://127.0.0.1:{self.ports['metrics_port']}/metrics", timeout=60).read().decode()
        values = parsed(text)["polyfleet_requests"].values
        return sum(number for (_, labels), number in values.items() if dict(labels).get("code") == "OK")


class Streams:
    """Streams of connections of their own, so many that each process has one."""

    def __init__(self, stack: AsyncExitStack, front: RunningFront) -> None:
        self._stack, self._front, self.calls = stack, front, list[asyncio.Task[Stream]]()

    def more(self) -> "Streams":
        """Others."""
        return Streams(self._stack, self._front)

    async def open(self, children: list[int]) -> None:
        """Until each of these has one."""
        while not all(self._front.connections(each) for each in children):
            await (await self.one()).channel_ready()

    async def one(self) -> Any:
        """One more; its channel."""
        options = [("grpc.use_local_subchannel_pool", 1)]
        address = f"127.0.0.1:{self._front.ports['grpc_port']}"
        channel: Any = grpc.aio.insecure_channel(address, options=options)
        await self._stack.enter_async_context(channel)
        call = inference_pb2_grpc.InferenceStub(channel).Generate(REQUEST, wait_for_ready=True)
        self.calls.append(asyncio.create_task(Stream.read(call)))
        return channel

    async def ends(self) -> list[Any]:
        """What came of each: its stream, or the error."""
        return await asyncio.gather(*self.calls, return_exceptions=True)


@asynccontextmanager
async def running(processes: int = 2) -> AsyncIterator[tuple[RunningFront, Streams, FakeWorker]]:
    """With a worker so slow that no stream ends before the test has it hurry."""
    worker = text_worker("w-1", token_seconds=1.0)
    command = [sys.executable, "-m", "polyfleet.gateway", "--processes", str(processes), *ANY_PORTS]
    async with SnapshotFleet() as fleet, worker, AsyncExitStack() as stack:
        fleet.add_assets(worker.assets)
        fleet.publish([fleet_pb2.FleetWorker(info=worker.info(), status=worker.status())])
        process = await asyncio.create_subprocess_exec(*command, "--fleet", fleet.address, stderr=PIPE)
        front = RunningFront(process)
        reading = asyncio.create_task(front.read())
        try:
            await until(lambda: bool(front.ports) or reading.done())
            await until(lambda: ready(front))
            yield front, Streams(stack, front), worker
        finally:
            if process.returncode is None:
                process.kill()
            await reading
            await process.wait()


def ready(front: RunningFront) -> bool:
    try:
        return bool(urlopen(f"http://127.0.0.1:{front.ports['metrics_port']}/readyz", timeout=60).status == 200)
    except OSError:
        return False


async def test_four_have_equally_many_connections_and_one_that_dies_takes_its_own_alone_along() -> None:
    async with running(4) as (front, streams, worker), AsyncExitStack() as stack:
        for _ in range(16):
            await (await streams.one()).channel_ready()
            stack.push_async_callback(closed, (await connected(front.ports["http_port"]))[1])
        assert front.spread() == front.spread("http_port") == [4, 4, 4, 4]
        psutil.Process(front.children.pop()).kill()
        after = streams.more()
        for _ in range(4):
            await after.one()
        worker.token_seconds = HURRIED_SECONDS
        check_ends(await streams.ends(), 12)
        check_ends(await after.ends(), 4)
        await until(lambda: len(front.children) == 4)
        assert await asyncio.to_thread(front.counted) == 16


async def connected(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection of HTTP that is taken: it has its answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
    await reader.readuntil(b"ok\n")
    return reader, writer


async def closed(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


def check_ends(ends: list[Any], whole: int) -> None:
    """So many streams have come whole, and none of the others by mistake."""
    streams = [each.ids() for each in ends if isinstance(each, Stream)]
    assert streams == [fake_tokens([4, 5], TOKENS, 0, VOCABULARY)] * whole
    assert {each.code() for each in ends if not isinstance(each, Stream)} <= {grpc.StatusCode.UNAVAILABLE}


async def test_one_that_hangs_is_replaced_and_connections_that_it_did_not_take_are_others() -> None:
    async with running() as (front, streams, worker):
        first, second = front.children
        await streams.open([first, second])
        expected = front.connections(second)
        psutil.Process(first).suspend()
        after = streams.more()
        for _ in range(4):
            await after.one()
        worker.token_seconds = HURRIED_SECONDS
        ends = await streams.ends()
        check_ends(ends, expected)
        assert 0 < expected < len(ends)
        check_ends(await after.ends(), 4)
        await until(lambda: len(front.children) == 3)
        assert await asyncio.to_thread(front.counted) == expected + 4
        front.process.send_signal(signal.SIGTERM)
        assert await front.process.wait() == 0
        assert not any(psutil.pid_exists(each) for each in front.children)


@pytest.mark.slow
async def test_a_rolling_restart_cuts_no_stream_and_loses_no_count() -> None:
    async with running() as (front, streams, worker):
        await streams.open(front.children)
        front.process.send_signal(signal.SIGUSR2)
        worker.token_seconds = HURRIED_SECONDS
        ends = await streams.ends()
        assert [each.ids() for each in ends] == [fake_tokens([4, 5], TOKENS, 0, VOCABULARY)] * len(ends)
        await until(lambda: len(front.children) == 4)
        await until(lambda: not any(map(psutil.pid_exists, front.children[:2])))
        assert await asyncio.to_thread(front.counted) == len(ends)
        again = streams.more()
        await again.open(front.children[2:])
        assert all(isinstance(each, Stream) for each in await again.ends())


async def test_two_of_them_do_not_share_a_port_and_one_that_can_not_start_says_why() -> None:
    async with running() as (front, _, _):
        taken = f"127.0.0.1:{front.ports['grpc_port']}"
        command = [sys.executable, "-m", "polyfleet.gateway", "--processes", "2", *ANY_PORTS, "--grpc-listen", taken]
        process = await asyncio.create_subprocess_exec(*command, stderr=PIPE)
        _, said = await process.communicate()
        assert process.returncode == 2
        assert said.decode() == f"{taken} is in use: free it, or choose another address with --grpc-listen.\n"
        front.process.kill()  # what it has started ends with it
        await until(lambda: not any(map(alive, front.children)))


def alive(pid: int) -> bool:
    """Whether it runs; one that nobody has waited for yet does not."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False

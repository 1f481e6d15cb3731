"""Agents: worker processes that dial the gateway and are dialled through it, with a real scheduler."""

import asyncio
import json
import signal
import urllib.request
from collections.abc import AsyncIterable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest
from bench.chaos.clock import Clocks
from bench.chaos.link import Link
from tests.support.fake_tokens import fake_tokens
from tests.support.fleet_certificates import Roots
from tests.support.gateway_rig import GatewayRig, Stream, failure_of, until
from tests.support.ports import free_address
from tests.support.running_scheduler import Running, start, stop
from tests.support.running_worker import RunningWorker
from tests.support.tls_files import write_tls_files
from tests.unit.process.test_process_fleet_keys import write

from polyfleet.gateway.agents.service import agent_problem
from polyfleet.process import keys as process_keys
from polyfleet.process.fleet_keys import NEEDS_KEY
from polyfleet.process.within import Within
from polyfleet.v1 import agents_pb2_grpc
from polyfleet.v1 import inference_pb2 as pb
from polyfleet.v1.agents_pb2 import Agent
from polyfleet.v1.operations_pb2 import TailLogRequest
from polyfleet.wire.auth import bearer_metadata

MODEL = "fake:step_seconds=0.02,hash=0"
TOKEN = "a-fleet-token"


class AgentRig:
    """A scheduler and a gateway with a fleet token and these `settings`, and a way to the gateway that can be cut.

    `roots`: their parts speak TLS to each other, by certificates of these.
    """

    def __init__(self, folder: Path, roots: Roots | None = None, **settings: str) -> None:
        self.folder, self.stack, self.settings = folder, AsyncExitStack(), settings
        self.roots, self.scheduler_metrics = roots, ""
        self.token_file = folder / "token"
        self.scheduler: Running
        self.rig: GatewayRig
        self.way: Link

    async def __aenter__(self) -> "AgentRig":
        self.token_file.write_text(TOKEN)
        token_file = str(self.token_file)
        keys = self.settings.get("fleet_keys_file", "")
        own: dict[str, Any] = {"fleet_token_file": token_file, "fleet_tls_dir": self.certificate("scheduler")}
        own["metrics_listen"] = self.scheduler_metrics = free_address()
        state = self.folder / "state"
        self.scheduler = await start(state, settle_seconds=0.0, fleet_keys_file=keys, **own)
        self.stack.push_async_callback(stop, self.scheduler)
        config = {"fleet": self.scheduler.address, "fleet_token_file": token_file, **self.settings}
        config["fleet_tls_dir"] = self.certificate("gateway")
        self.rig = await self.stack.enter_async_context(GatewayRig(config=config))
        target = f"127.0.0.1:{self.rig.gateway.grpc.port}"
        self.way = await self.stack.enter_async_context(Link(target))
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.stack.aclose()

    def certificate(self, role: str) -> str:
        """A folder with that of a part of this role; empty without roots."""
        return str(self.roots.write(self.folder / f"tls-{role}", role)) if self.roots else ""

    async def worker(self, name: str, *options: str, environ: Mapping[str, str] | None = None) -> RunningWorker:
        """A process of that name; it need not be ready yet."""
        (folder := self.folder / f"{name}-{len(list(self.folder.iterdir()))}").mkdir()
        options = ("--worker-id", name, "--fleet-token-file", str(self.token_file), *options)
        process = RunningWorker(folder, *options, model=MODEL, wait_ready=False, environ=environ)
        return await self.stack.enter_async_context(process)

    async def agent(self, name: str, *options: str, environ: Mapping[str, str] | None = None) -> RunningWorker:
        """One that joins over the way."""
        return await self.worker(name, "--join", self.way.address, *options, environ=environ)

    def ready(self, *names: str) -> bool:
        """Whether the gateway can use these and no others."""
        sessions = self.rig.gateway.view.sessions
        return {each for each, session in sessions.items() if session.connected and session.says_ready} == set(names)


class Moving:
    """A stream that is read on, whoever serves it."""

    def __init__(self, call: AsyncIterable[pb.GenerateResponse]) -> None:
        self.ids, self.workers, self.after_moving = list[int](), list[str](), 0
        self._call = call

    async def read(self) -> None:
        """To its end."""
        async for message in self._call:
            self.ids += message.token_ids
            self.workers += [message.worker_id] if message.worker_id else []
            self.after_moving += len(self.workers) > 1


async def test_an_agent_serves_over_its_own_connection_until_it_is_told_to_go(tmp_path: Path) -> None:
    async with AgentRig(tmp_path) as rig:
        agent = await rig.agent("mac")
        await until(lambda: rig.ready("mac"))
        request = pb.GenerateRequest(token_ids=[1, 2], ignore_eos=True, max_tokens=20)
        stream = await Stream.read(rig.rig.stub.Generate(request))
        assert stream.ids() == fake_tokens([1, 2], 20)
        assert stream.workers() == ["mac"]
        info = rig.rig.gateway.view.sessions["mac"].info
        assert info.joined
        (found,) = json.loads(await asyncio.to_thread(read, f"http://{rig.scheduler_metrics}/targets"))
        assert found["labels"].items() >= {"worker_id": "mac", "joined": "true"}.items()
        assert found["targets"] == [info.metrics_address]  # where Prometheus finds it
        assert b"\npolyfleet_worker_ready" in await asyncio.to_thread(read, f"http://{info.metrics_address}/metrics")
        asked = TailLogRequest(worker_id="mac", lines=100)
        lines = await rig.scheduler.fleet.TailLog(asked, metadata=bearer_metadata(TOKEN))
        assert any("Joined at" in line for line in lines.lines)
        rig.rig.gateway.relay.close()  # as when the gateway goes
        await until(lambda: rig.rig.gateway.view.sessions["mac"].info.address != info.address)
        await until(lambda: rig.ready("mac"))
        agent.signal(signal.SIGTERM)
        assert await agent.exit_status() == 0
        await until(lambda: not rig.rig.gateway.view.sessions)
        await until(lambda: len(rig.rig.gateway.relay) == 0)


async def test_streams_of_an_agent_that_is_told_to_go_end_whole_before_it_does(tmp_path: Path) -> None:
    async with AgentRig(tmp_path) as rig:
        agent = await rig.agent("mac")
        await until(lambda: rig.ready("mac"))
        request = pb.GenerateRequest(token_ids=[3], max_tokens=150, ignore_eos=True)  # 3 s
        streams = [Moving(rig.rig.stub.Generate(request)) for _ in range(3)]
        reading = [asyncio.create_task(each.read()) for each in streams]
        await until(lambda: all(each.ids for each in streams))
        agent.signal(signal.SIGTERM)
        await until(lambda: rig.ready())
        await asyncio.gather(*reading)
        for each in streams:
            assert each.ids == fake_tokens([3], 150)
            assert each.workers == ["mac"]
        assert await agent.exit_status() == 0
        assert "SIGTERM received: draining." in agent.errors


@pytest.mark.parametrize(("away", "back_in"), [(0, 60), pytest.param(60, 5, marks=pytest.mark.slow)])
async def test_streams_of_an_agent_whose_network_goes_resume_elsewhere_and_it_comes_back(
    tmp_path: Path, away: float, back_in: float
) -> None:
    async with AgentRig(tmp_path) as rig:
        await rig.agent("mac")
        await until(lambda: rig.ready("mac"))
        request = pb.GenerateRequest(token_ids=[3], max_tokens=15_000, ignore_eos=True)
        streams = [Moving(rig.rig.stub.Generate(request)) for _ in range(3)]
        reading = [asyncio.create_task(each.read()) for each in streams]
        await until(lambda: all(each.ids for each in streams))
        await rig.worker("here", "--fleet", rig.scheduler.address)
        await until(lambda: rig.ready("mac", "here"))
        rig.way.silence()
        await until(lambda: all(each.after_moving > 20 for each in streams))
        await until(lambda: rig.ready("here"))
        await asyncio.sleep(away)
        rig.way.heal()
        with Within(back_in):
            await until(lambda: rig.ready("mac", "here"))
        assert len(rig.rig.gateway.relay) == 1, "its old joining is over"
        for each, task in zip(streams, reading, strict=True):
            assert not task.done()
            assert each.ids == fake_tokens([3], len(each.ids))
            assert each.workers == ["mac", "here"]
            task.cancel()
        await asyncio.gather(*reading, return_exceptions=True)


async def test_an_agent_whose_key_is_changed_while_it_runs_joins_by_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_keys, "RELOAD_SECONDS", 0.0)
    gateway, keys, own = {"id": TOKEN, "role": "gateway"}, tmp_path / "keys.yaml", tmp_path / "own"
    write(keys, gateway, {"id": "old", "role": "worker"})
    own.write_text("old")
    async with AgentRig(tmp_path, fleet_keys_file=str(keys)) as rig:
        agent = await rig.agent("mac", "--fleet-token-file", str(own), "--fleet-keys-file", str(keys))
        await until(lambda: rig.ready("mac"))
        write(keys, gateway, {"id": "new", "role": "worker"})
        rig.way.cut()
        await said(agent, NEEDS_KEY)
        own.write_text("")  # half-way through being written
        await said(agent, f"The fleet token file {own} is empty")
        own.write_text("new")
        await said(agent, "Joined at")
        await until(lambda: rig.ready("mac"))


async def test_a_second_agent_of_a_name_is_told_why_and_joins_once_the_first_has_gone(tmp_path: Path) -> None:
    async with AgentRig(tmp_path) as rig:
        first = await rig.agent("mac")
        await until(lambda: rig.ready("mac"))
        second = await rig.agent("mac")
        await said(second, "The name 'mac' is taken: another agent has joined under it.")
        async with grpc.aio.insecure_channel(rig.way.address) as channel:
            for metadata in ((), bearer_metadata("another")):
                call = agents_pb2_grpc.AgentsStub(channel).Join(metadata=metadata)
                assert (await failure_of(call)).code is grpc.StatusCode.UNAUTHENTICATED
        first.signal(signal.SIGKILL)
        await first.exit_status()
        await said(second, "Joined at")
        await until(lambda: rig.ready("mac"))


async def test_an_agent_joins_over_tls_by_roots_that_it_trusts(tmp_path: Path) -> None:
    (tmp_path / "others").mkdir()
    certificate, key = write_tls_files(tmp_path)
    other, _ = write_tls_files(tmp_path / "others")
    async with AgentRig(tmp_path, tls_cert=str(certificate), tls_key=str(key)) as rig:
        stranger = await rig.agent("stranger", "--join-ca-file", str(other))
        await said(stranger, "is not trusted: name the PEM file of its roots with --ca-file")
        await rig.agent("mac", "--join-ca-file", str(certificate))
        await until(lambda: rig.ready("mac"))


async def test_an_agent_with_a_certificate_of_another_fleet_is_refused_with_the_reason(tmp_path: Path) -> None:
    roots = Roots()
    strangers = {
        "other-roots": (Roots("others").write(tmp_path / "1", "worker"), "CERTIFICATE_VERIFY_FAILED"),
        "another": (roots.write(tmp_path / "2", "worker", "another"), "this worker's is of the fleet another: both"),
        "no-worker": (roots.write(tmp_path / "3", "gateway"), "The caller's certificate is of role gateway; this call"),
    }
    async with AgentRig(tmp_path, roots) as rig:
        agents = {name: await rig.agent(name, "--fleet-tls-dir", str(each)) for name, (each, _) in strangers.items()}
        for name, (_, reason) in strangers.items():
            await said(agents[name], reason)
        await rig.agent("mac", "--fleet-tls-dir", rig.certificate("worker"))
        await until(lambda: rig.ready("mac"))
        assert set(rig.rig.gateway.view.sessions) == {"mac"}


async def test_an_agent_with_a_wrong_clock_is_told_and_joins_once_it_is_set(tmp_path: Path) -> None:
    clocks = Clocks(tmp_path)
    environ = clocks.environ("mac")
    clocks.set("mac", 3600)
    async with AgentRig(tmp_path) as rig:
        agent = await rig.agent("mac", environ=environ)
        await said(agent, "s ahead of the gateway's: set it, by NTP say.")
        assert not rig.ready("mac")
        clocks.set("mac", 0)
        await until(lambda: rig.ready("mac"))


def read(url: str) -> bytes:
    """The whole answer; never in the event loop, in which the gateway carries it."""
    with urllib.request.urlopen(url, timeout=60) as answer:
        return bytes(answer.read())


async def said(worker: RunningWorker, words: str) -> None:
    """Read its log until it says so; the words are part of a line."""
    assert worker.process.stderr is not None
    while words not in (line := (await worker.process.stderr.readline()).decode()):
        assert line, f"it ended without {words!r}"


@pytest.mark.parametrize(("ahead", "words"), [(3600.0, "3600 s ahead of"), (-90.0, "90 s behind"), (30.0, "")])
def test_the_clock_of_an_agent_may_be_a_minute_wrong(ahead: float, words: str) -> None:
    problem = agent_problem(Agent(name="mac", unix_seconds=1e9 + ahead), 1e9)
    assert words in problem
    assert bool(problem) == bool(words)

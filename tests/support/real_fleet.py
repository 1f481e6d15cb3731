"""Real workers of one tiny model, relays that can cut them off, and a gateway before these."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
import httpx2 as httpx
from bench.chaos.link import Link
from tests.support.gateway_rig import GatewayRig, until
from tests.support.running_worker import REAL, RunningWorker

from polyfleet.client import AsyncClient
from polyfleet.loading.load import load_model
from polyfleet.v1 import fleet_pb2, worker_pb2, worker_pb2_grpc

OPTIONS = ("--threads", "1", "--kv-cache-tokens", "4096", "--max-sequences", "4", "--canary-interval", "0")


@dataclass(frozen=True)
class RealFleet:
    """The model's name is fake. `relays` are those of `workers`."""

    rig: GatewayRig
    client: AsyncClient
    http: httpx.AsyncClient
    workers: Sequence[RunningWorker]
    relays: Sequence[Link]

    def arm(self, after_bytes: int) -> None:
        """Each worker is cut off once so many bytes have come from it; 0: it is not."""
        for relay in self.relays:
            relay.arm(after_bytes)

    @asynccontextmanager
    async def cut_midway(self) -> AsyncIterator[None]:
        """An answer that is asked for herein loses its worker, once it has begun to come."""
        before = sum(relay.cuts for relay in self.relays)
        self.arm(300)
        yield
        self.arm(0)
        assert sum(relay.cuts for relay in self.relays) > before

    async def announce(self) -> None:
        """The gateway hears what workers have to say of themselves."""
        for worker, relay in zip(self.workers, self.relays, strict=True):
            answer, info = await worker.status(), fleet_pb2.WorkerInfo()
            info.CopyFrom(answer.info)
            info.address = relay.address
            self.rig.fleet.workers[info.worker_id] = fleet_pb2.FleetWorker(info=info, status=answer.status)
        self.rig.fleet.publish()
        sessions, count = self.rig.gateway.view.sessions, len(self.workers)
        await until(lambda: len(sessions) == count and all(each.connected for each in sessions.values()))

    async def set_adapters(self, sources: Mapping[str, Path]) -> dict[str, fleet_pb2.Adapter]:
        """What the first worker says of each; the others are told alike."""
        wanted = [fleet_pb2.Adapter(name=name, source=str(source)) for name, source in sources.items()]
        request, found = worker_pb2.SetAdaptersRequest(adapters=wanted), list[fleet_pb2.Adapter]()
        for worker in reversed(self.workers):
            async with grpc.aio.insecure_channel(worker.address) as channel:
                found = list((await worker_pb2_grpc.WorkerStub(channel).SetAdapters(request)).adapters)
        await self.announce()
        view = self.rig.gateway.view
        await until(lambda: {each.name for each in view.adapters} == set(sources))
        return {each.name: each for each in found}


@asynccontextmanager
async def real_fleet(folder: Path, model: Path, *options: Sequence[str]) -> AsyncIterator[RealFleet]:
    """A worker of the model for each of the options."""
    async with AsyncExitStack() as entered:
        rig = await entered.enter_async_context(GatewayRig())
        assets = load_model(model).tokenizer
        assert assets is not None
        rig.fleet.add_assets(assets.document)
        workers, relays = list[RunningWorker](), list[Link]()
        for number, given in enumerate(options):
            home = folder / str(number)
            home.mkdir()
            running = RunningWorker(home, *OPTIONS, *given, model=str(model), command=REAL)
            workers.append(await entered.enter_async_context(running))
            relays.append(await entered.enter_async_context(Link(workers[-1].address)))
        client = await entered.enter_async_context(AsyncClient(f"127.0.0.1:{rig.gateway.grpc.port}"))
        http = httpx.AsyncClient(base_url=rig.http, trust_env=False, timeout=60)
        fleet = RealFleet(rig, client, await entered.enter_async_context(http), workers, relays)
        await fleet.announce()
        yield fleet

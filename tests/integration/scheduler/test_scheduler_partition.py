"""Two schedulers on one state that both live, as behind a partition: real processes, a relay for their network."""

import asyncio
import re
from urllib.request import urlopen

import grpc
import pytest
from bench.chaos.fleet import MODEL, ChaosFleet
from bench.chaos.parts import Part
from bench.chaos.runs import disturbed, more
from bench.report import Row
from bench.soaking.streams import Soak
from tests.support.ports import free_addresses

from polyfleet.process.within import Within
from polyfleet.v1 import fleet_pb2 as pb
from polyfleet.v1.fleet_pb2_grpc import FleetStub

WISH = pb.ModelDeployment(name="d", model_name=MODEL, source="/m", workers=1, accelerators=["cpu"])
CLIENTS = 4


def connected(fleet: ChaosFleet) -> bool:
    """Whether the gateway listens to a scheduler."""
    text = urlopen(f"http://{fleet.gateway_addresses[0][2]}/metrics", timeout=30).read().decode()
    return re.search(r"^polyfleet_scheduler_connected 1", text, re.MULTILINE) is not None


async def until_connected(fleet: ChaosFleet) -> None:
    while not await asyncio.to_thread(connected, fleet):
        await asyncio.sleep(0.1)


async def started_for(address: str) -> int:
    """How many workers that scheduler has started for the deployment."""
    async with grpc.aio.insecure_channel(address) as channel:
        snapshot = await FleetStub(channel).ListWorkers(pb.ListWorkersRequest(), wait_for_ready=True, timeout=60)
    return sum(each.info.deployment == WISH.name for each in snapshot.workers)


async def deploy(address: str) -> None:
    async with grpc.aio.insecure_channel(address) as channel:
        await FleetStub(channel).Deploy(pb.DeployRequest(deployment=WISH), wait_for_ready=True, timeout=60)


async def test_the_older_one_starts_nothing_and_gateways_do_not_go_back_to_it() -> None:
    listen, metrics = free_addresses(2)
    async with ChaosFleet(workers=1, gateways=1, max_sequences=CLIENTS) as fleet:
        older, link = fleet.scheduler_address, fleet.links["scheduler"]
        later = Part("later", "bench.chaos.scheduler", [listen, metrics, str(fleet.folder / "state")], fleet.folder)

        async def partition(run: Soak) -> list[Row]:
            link.silence()
            later.start()
            await deploy(listen)
            link.lead_to(listen)
            link.cut()
            link.heal()
            await until_connected(fleet)
            while await started_for(listen) != 1:
                await asyncio.sleep(0.1)
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await deploy(older)
            assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
            assert "Another scheduler has taken over this one's state" in (refused.value.details() or "")
            link.lead_to(older)  # where all find it again
            link.cut()
            while "another scheduler has replaced it" not in fleet.gateways[0].said():
                await asyncio.sleep(0.1)
            await more(run, 2 * CLIENTS)
            assert (await started_for(older), await started_for(listen)) == (0, 1)
            link.lead_to(listen)
            link.cut()
            await until_connected(fleet)
            return []

        try:
            run = disturbed(fleet, partition, clients=CLIENTS, tokens=60, seed=5)
            with Within(240):
                tally, _ = await run
        finally:
            later.kill()
    assert (tally.wrong, tally.lost) == ([], [])
    assert tally.finished.total() >= 2 * CLIENTS

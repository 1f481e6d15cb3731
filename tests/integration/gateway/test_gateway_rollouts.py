"""A deployment with two revisions at work: both serve, no request meets both, sessions stay, the scheduler hears."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.integration.gateway.test_gateway_revisions import expected, worker
from tests.support.fake_worker import FakeWorker
from tests.support.gateway_rig import GatewayRig, Stream, until

from polyfleet.placement.fleet import Revision
from polyfleet.v1 import fleet_pb2
from polyfleet.v1 import inference_pb2 as pb

NUMBERS = {"old": 1, "new": 2}
TOKENS = 12


@pytest.fixture
async def rig() -> AsyncIterator[GatewayRig]:
    async with GatewayRig() as rig:
        yield rig


async def serve(rig: GatewayRig, workers: dict[str, FakeWorker], **percents: int) -> None:
    """Let these workers be of their revisions of one deployment, which shares requests out so."""
    await rig.add(*workers.values())
    wish = fleet_pb2.ModelDeployment(name="d", model_name="fake", workers=len(workers), revision=2)
    for revision, percent in percents.items():
        wish.traffic.add(revision=NUMBERS[revision], percent=percent)
    rig.fleet.deployments = [wish]
    for each in workers.values():
        rig.fleet.workers[each.worker_id].info.revision = NUMBERS[each.fingerprint]
    rig.fleet.publish()
    wanted = {Revision("d", NUMBERS[each.fingerprint]) for each in workers.values()}
    await until(lambda: rig.gateway.view.revisions() == wanted)


async def revision_of(rig: GatewayRig, session: str = "", **more: Any) -> str:
    """Which revision computed a whole stream; none is made of both."""
    request = pb.GenerateRequest(token_ids=[4, 5], max_tokens=TOKENS, **more)
    stream = await Stream.read(rig.stub.Generate(request, metadata=(("x-session-id", session),) if session else ()))
    (found,) = (each for each in NUMBERS if stream.ids() == expected(TOKENS, each))
    return found


def two(**options: Any) -> dict[str, FakeWorker]:
    return {each: worker(f"w-{each}", each, deployment="d", **options) for each in NUMBERS}


async def test_both_revisions_serve_while_the_deployment_changes_and_streams_stay_whole(rig: GatewayRig) -> None:
    workers = two(token_seconds=0.001)
    await serve(rig, workers)
    running = [asyncio.create_task(revision_of(rig, request_id=f"r-{each}")) for each in range(60)]
    assert set(await asyncio.gather(*running)) == {"old", "new"}
    await rig.drop(workers["old"])
    later = [await revision_of(rig, request_id=f"s-{each}") for each in range(5)]
    assert later == ["new"] * 5


async def test_a_session_stays_with_its_revision_and_a_share_is_kept(rig: GatewayRig) -> None:
    await serve(rig, two(), old=80, new=20)
    sessions = [await revision_of(rig, f"user-{each}") for each in range(80)]
    assert 4 <= sessions.count("new") <= 32
    assert [await revision_of(rig, f"user-{each}") for each in range(80)] == sessions


async def test_the_scheduler_hears_how_each_revision_fares(rig: GatewayRig) -> None:
    await serve(rig, two(), old=50, new=50)
    counts = [await revision_of(rig) for _ in range(10)]
    wanted = {NUMBERS[each]: (counts.count(each), 0) for each in set(counts)}

    def told() -> dict[int, tuple[int, int]]:
        totals = rig.fleet.reports[-1].revisions if rig.fleet.reports else ()
        return {each.revision: (each.sequences, each.errors) for each in totals}

    await until(lambda: told() == wanted)
    (demand,) = rig.fleet.reports[-1].models
    assert (demand.model, demand.queued, demand.running, demand.requests) == ("fake", 0, 0, 10)


async def share_out(rig: GatewayRig, **percents: int) -> None:
    """Let pools named after their revisions have these parts of the model's requests."""
    rig.fleet.deployments = [
        fleet_pb2.ModelDeployment(name=name, model_name="fake", workers=1, traffic_percent=percent)
        for name, percent in percents.items()
    ]
    for fleet_worker in rig.fleet.workers.values():
        fleet_worker.info.revision = 1  # as the scheduler says of pools that share
    rig.fleet.publish()
    told = [each.traffic_percent for each in rig.fleet.deployments]
    await until(lambda: [each.traffic_percent for each in rig.gateway.view._heard.wishes] == told)


async def test_pools_of_one_model_share_its_requests_and_sessions_keep_theirs(rig: GatewayRig) -> None:
    await rig.add(*(worker(f"w-{each}", each, deployment=each) for each in NUMBERS))
    await share_out(rig, old=80, new=20)
    drawn = Counter([await revision_of(rig, request_id=f"r-{number}") for number in range(100)])
    assert 5 <= drawn["new"] <= 40
    session, *_ = [each for each in map(str, range(30)) if await revision_of(rig, each) == "new"]
    await share_out(rig, old=50, new=50)
    assert [await revision_of(rig, session) for _ in range(5)] == ["new"] * 5
    await share_out(rig, old=0, new=100)
    assert {await revision_of(rig, request_id=f"p-{number}") for number in range(20)} == {"new"}
    totals = {(each.deployment, each.revision) for each in rig.gateway.metrics.demand.revisions()}
    assert totals == {("old", 1), ("new", 1)}

"""Deployments through the Fleet service on a real port, with the controller on a cluster without Ray."""

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status
from tests.support.fake_worker import FakeWorker
from tests.support.running_scheduler import Running, refusal, states

from polyfleet.scheduler.launcher.launch import Phase
from polyfleet.v1 import fleet_pb2 as pb

WISH = pb.ModelDeployment(name="d", source="/m.gguf", workers=1)


async def test_deploy_launches_and_undeploy_retires(running: Running) -> None:
    wish = pb.ModelDeployment(name="d", source="/m.gguf", workers=2, options=pb.WorkerOptions(threads=1))
    stored = (await running.fleet.Deploy(pb.DeployRequest(deployment=wish))).deployment
    assert stored.created_unix_seconds > 1_700_000_000
    await running.until(lambda s: len(s.workers) == 2)
    first, second = running.cluster.launched
    assert first.worker_id != second.worker_id
    load = first.load_request
    assert (load.deployment, load.model_name, load.source, load.options.threads) == ("d", "d", "/m.gguf", 1)
    assert first.fleet_address == running.address
    await running.fleet.Undeploy(pb.UndeployRequest(name="d"))
    await running.until(lambda s: not s.workers and not s.deployments)
    assert sorted(running.cluster.ended) == sorted([(first.worker_id, True), (second.worker_id, True)])


async def test_deploying_again_changes_and_keeps_the_time_of_creation(running: Running) -> None:
    await running.fleet.Deploy(pb.DeployRequest(deployment=WISH))
    before = await running.until(lambda s: s.workers)
    changed = pb.ModelDeployment(name="d", source="/other.gguf", workers=1, created_unix_seconds=5)
    await running.fleet.Deploy(pb.DeployRequest(deployment=changed))
    after = await running.until(lambda s: len(running.cluster.launched) == 2)
    assert after.deployments[0].created_unix_seconds == before.deployments[0].created_unix_seconds
    assert running.cluster.launched[1].load_request.source == "/other.gguf"


async def test_a_bad_deployment_names_field_and_limit(running: Running) -> None:
    wish = pb.ModelDeployment(name="d", source="/m", workers=1001)
    error = await refusal(running.fleet.Deploy(pb.DeployRequest(deployment=wish)))
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert error.details() == "deployment.workers: must be at most 1000, not 1001."
    detail = error_details_pb2.BadRequest()
    assert rpc_status.from_call(error).details[0].Unpack(detail)
    assert detail.field_violations[0].field == "deployment.workers"
    assert not (await running.snapshot()).deployments


async def test_a_deployment_sleeps_until_a_gateway_tells_of_who_waits(running: Running) -> None:
    aims = pb.Autoscaling(min_workers=0, max_workers=2, idle_seconds=0.01)
    wish = pb.ModelDeployment(name="d", source="/m.gguf", workers=1, autoscaling=aims)
    await running.fleet.Deploy(pb.DeployRequest(deployment=wish))
    await running.until(lambda s: s.deployments and not s.deployments[0].workers and not s.workers)
    waiting = pb.ModelDemand(model="d", queued=1)
    report = pb.ReportUsageRequest(gateway_id="gw", models=[waiting])
    await running.fleet.ReportUsage(report)
    snapshot = await running.until(lambda s: s.workers)
    assert (snapshot.deployments[0].workers, snapshot.workers[0].info.revision) == (1, 1)


async def test_undo_goes_back_and_refuses_without_a_revision_before(running: Running) -> None:
    error = await refusal(running.fleet.UndoRollout(pb.UndoRolloutRequest(name="d")))
    assert error.code() == grpc.StatusCode.NOT_FOUND
    await running.fleet.Deploy(pb.DeployRequest(deployment=WISH))
    error = await refusal(running.fleet.UndoRollout(pb.UndoRolloutRequest(name="d")))
    assert error.code() == grpc.StatusCode.FAILED_PRECONDITION
    changed = pb.ModelDeployment(name="d", source="/other.gguf", workers=1)
    await running.fleet.Deploy(pb.DeployRequest(deployment=changed))
    stale = pb.ModelDeployment(name="d", source="/third.gguf", workers=1, revision=1)
    error = await refusal(running.fleet.Deploy(pb.DeployRequest(deployment=stale)))
    assert error.code() == grpc.StatusCode.ABORTED
    back = (await running.fleet.UndoRollout(pb.UndoRolloutRequest(name="d"))).deployment
    assert (back.revision, back.source) == (1, "/m.gguf")


async def test_a_revision_that_does_not_come_up_is_taken_back_by_itself(running: Running) -> None:
    await running.fleet.Deploy(pb.DeployRequest(deployment=WISH))
    await running.until(lambda s: s.workers)
    async with FakeWorker(running.cluster.launched[0].worker_id, "d", fleet=running.address, deployment="d"):
        await running.until(lambda s: s.deployments[0].stable_revision == 1)
        changed = pb.ModelDeployment(name="d", source="/other.gguf", workers=1)
        await running.fleet.Deploy(pb.DeployRequest(deployment=changed))
        await running.until(lambda s: len(running.cluster.launched) == 2)
        bad = running.cluster.launched[1].worker_id
        running.cluster.report(bad, phase=Phase.FAILED, reason="/other.gguf is truncated.", restarts=2)
        snapshot = await running.until(lambda s: s.deployments[0].revision == 1)
        assert snapshot.deployments[0].revisions[0].problem == "None of its workers came up. /other.gguf is truncated."
        await running.until(lambda s: len(s.workers) == 1)
        assert [launcher for launcher, _ in running.cluster.stopped] == [bad]


async def test_unknown_names_are_not_found_with_the_list(running: Running) -> None:
    await running.fleet.Deploy(pb.DeployRequest(deployment=WISH))
    error = await refusal(running.fleet.Undeploy(pb.UndeployRequest(name="x")))
    assert (error.code(), error.details()) == (
        grpc.StatusCode.NOT_FOUND,
        "There is no deployment 'x'; there are: d.",
    )
    error = await refusal(running.fleet.Drain(pb.DrainRequest(worker_id="x")))
    assert error.code() == grpc.StatusCode.NOT_FOUND


async def test_a_scheduler_that_another_one_has_replaced_starts_nothing_and_says_so(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polyfleet.scheduler.deployments.deployment_calls.PATIENCE_SECONDS", 0.1)
    store = running.scheduler._store
    assert running.scheduler._registry.snapshot().generation == store.generation > 0
    store.begin_life()
    await running.until(lambda _: "Another scheduler" in running.scheduler._controller._failure)
    error = await refusal(running.fleet.Deploy(pb.DeployRequest(deployment=WISH)))
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert "Another scheduler has taken over this one's state" in error.details()
    assert running.cluster.launched == []


async def test_a_deployment_that_finds_no_place_says_so(running: Running) -> None:
    wish = pb.ModelDeployment(name="d", source="/m", workers=1, accelerators=["cuda"])
    await running.fleet.Deploy(pb.DeployRequest(deployment=wish))
    snapshot = await running.until(lambda s: s.deployments and s.deployments[0].problem)
    assert snapshot.deployments[0].problem == "No node of the cluster has cuda."


async def test_a_failed_launcher_shows_its_reason(running: Running) -> None:
    await running.fleet.Deploy(pb.DeployRequest(deployment=WISH))
    await running.until(lambda s: list(states(s).values()) == ["STARTING"])
    worker_id = running.cluster.launched[0].worker_id
    running.cluster.report(worker_id, phase=Phase.FAILED, reason="/m.gguf is truncated.")
    snapshot = await running.until(lambda s: states(s) == {worker_id: "UNHEALTHY"})
    assert snapshot.workers[0].status.reason == "/m.gguf is truncated."
    snapshot = await running.until(lambda s: s.deployments[0].problem)
    assert snapshot.deployments[0].problem == "0 of 1 workers is ready: /m.gguf is truncated."


async def test_a_drained_worker_is_replaced_while_it_finishes(running: Running) -> None:
    running.cluster.hold_stops.clear()
    await running.fleet.Deploy(pb.DeployRequest(deployment=WISH))
    await running.until(lambda s: s.workers)
    old = running.cluster.launched[0].worker_id
    await running.fleet.Drain(pb.DrainRequest(worker_id=old))
    await running.until(lambda s: len(s.workers) == 2)
    running.cluster.hold_stops.set()
    snapshot = await running.until(lambda s: len(s.workers) == 1)
    assert snapshot.workers[0].info.worker_id == running.cluster.launched[1].worker_id
    assert [launcher for launcher, _ in running.cluster.stopped] == [old]


async def test_a_worker_of_a_removed_deployment_is_told_to_stop(running: Running) -> None:
    await running.fleet.Deploy(pb.DeployRequest(deployment=WISH))
    await running.fleet.Undeploy(pb.UndeployRequest(name="d"))
    model = pb.ModelInfo(name="m")
    for info, unwanted in (
        (pb.WorkerInfo(worker_id="w-1", deployment="d", model=model), True),
        (pb.WorkerInfo(worker_id="w-1", deployment="d"), False),  # attached: it has unloaded its model already
        (pb.WorkerInfo(worker_id="w-1", deployment="never-heard-of", model=model), False),
        (pb.WorkerInfo(worker_id="w-1", model=model), False),
    ):
        call = running.fleet.Register()
        await call.write(pb.RegisterRequest(info=info))
        assert (await call.read()).stop == unwanted
        call.cancel()

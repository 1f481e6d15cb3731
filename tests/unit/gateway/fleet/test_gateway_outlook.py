"""Why a model has no ready worker, and whether clients should wait: known wishes, progress, hopeless cases."""

import asyncio
from typing import Any

import pytest
from tests.support.undialled import undialled

from polyfleet.gateway.config import Limits
from polyfleet.gateway.errors import NotFound, Unavailable
from polyfleet.gateway.fleet.outlook import outlook
from polyfleet.gateway.fleet.view import FleetView
from polyfleet.gateway.metrics import Metrics
from polyfleet.gateway.request.models import Models
from polyfleet.gateway.request.queue import RequestQueue
from polyfleet.placement.place import place
from polyfleet.v1 import fleet_pb2 as pb

STARTING, LOADING, DRAINING = pb.WORKER_STATE_STARTING, pb.WORKER_STATE_LOADING, pb.WORKER_STATE_DRAINING
UNHEALTHY, LOST = pb.WORKER_STATE_UNHEALTHY, pb.WORKER_STATE_LOST
LOOPING = "Pool p loses worker after worker."
NO_ROOM = "All places for cpu workers are taken."


class NoTexts:
    """No tokenizer is ever there."""

    def want(self, hashes: Any) -> None:
        pass

    def get(self, content_hash: str) -> None:
        return None


def worker(state: "pb.WorkerState.ValueType", reason: str = "", model: str = "", **info: Any) -> pb.FleetWorker:
    described = pb.WorkerInfo(worker_id="w-1", **info)
    if model:
        described.model.name = model
    return pb.FleetWorker(info=described, status=pb.WorkerStatus(state=state, reason=reason, load_progress=0.42))


def deployed(*workers: pb.FleetWorker, problem: str = "", wanted: int = 2) -> pb.FleetSnapshot:
    wish = pb.ModelDeployment(name="d", model_name="m", workers=wanted, problem=problem)
    return pb.FleetSnapshot(workers=workers, deployments=[wish])


def pooled(*workers: pb.FleetWorker, wanted: int = 2, problem: str = "") -> pb.FleetSnapshot:
    pool = pb.ModelDeployment(name="pool", model_name="m", accelerators=["cpu"], workers=wanted, problem=problem)
    return pb.FleetSnapshot(workers=workers, pools=[pool])


@pytest.mark.parametrize(
    ("snapshot", "hopeless", "words"),
    [
        (pooled(), False, "2 wanted, 0 there"),
        (pooled(worker(LOADING, intended_model="m")), False, "being loaded (42%)"),
        (pooled(worker(LOADING, "it stands still", intended_model="m")), True, "(42%). It stands still."),
        (pooled(worker(UNHEALTHY, "the file is cut off", intended_model="m")), True, "The file is cut off."),
        (pooled(worker(LOST, "no report for 3 s", intended_model="m")), False, "No report for 3 s."),
        (pooled(problem=LOOPING), True, LOOPING),
        (pooled(worker(LOST, "no report for 3 s", intended_model="m"), problem=LOOPING), True, LOOPING),
        (pooled(worker(LOADING, intended_model="m"), problem=LOOPING), False, f"(42%). {LOOPING}"),
        (pooled(worker(STARTING, intended_model="m"), problem=LOOPING), False, LOOPING),
        (pooled(wanted=0), False, "none is wanted now"),  # an autoscaler may want one when requests wait
        (deployed(problem=NO_ROOM), True, NO_ROOM),
        (deployed(worker(STARTING, deployment="d"), problem=NO_ROOM), False, "a worker starts"),
        (deployed(worker(DRAINING, deployment="d"), problem=NO_ROOM), False, "are changing"),
        (deployed(worker(LOADING, deployment="d"), problem=NO_ROOM), False, "(42%)"),
        (deployed(worker(UNHEALTHY, "no such file", deployment="d")), True, "No such file."),
        (deployed(worker(UNHEALTHY, "the device hangs", "m", deployment="d")), False, "The device hangs."),
        (deployed(worker(99, deployment="d")), False, "are changing"),  # type: ignore[arg-type]  # of a newer version
        (deployed(worker(UNHEALTHY, "other", deployment="e"), problem=NO_ROOM), True, NO_ROOM),
        (deployed(wanted=0), True, "none is wanted now"),
    ],
)
def test_the_reason_is_told_and_whether_to_wait(snapshot: pb.FleetSnapshot, hopeless: bool, words: str) -> None:
    found = outlook("m", snapshot)
    assert found.hopeless is hopeless
    assert words in found.reason
    assert found.reason.endswith(".")


def test_what_a_deployment_repeats_of_its_workers_is_said_once() -> None:
    snapshot = deployed(worker(UNHEALTHY, "no file.", deployment="d"), problem="0 of 2 workers are ready: no file.")
    assert outlook("m", snapshot).reason == "No worker of model m is well. No file."


def catalogue(snapshot: pb.FleetSnapshot, queue_timeout: float) -> Models:
    view, limits, metrics = FleetView("gw", undialled), Limits(queue_timeout=queue_timeout), Metrics()
    view.apply(snapshot)
    return Models(view, NoTexts(), RequestQueue(view, place, limits, metrics), limits)  # type: ignore[arg-type]


async def test_a_pool_without_workers_is_unavailable_and_another_name_not_found() -> None:
    models = catalogue(pooled(), 0.01)
    with pytest.raises(Unavailable, match="2 wanted, 0 there") as caught:
        await models.resolve("m", 60)
    assert caught.value.retry_after
    with pytest.raises(NotFound):
        await models.resolve("nobody-wanted-this", 60)
    assert [(each.name, each.ready_workers) for each in models.all()] == [("m", 0)]
    assert "0 there" in models.all()[0].reason
    assert (models.known_name(""), models.known_name("m"), models.known_name("x")) == ("m", "m", "")


async def test_what_waiting_will_not_change_is_told_at_once() -> None:
    models = catalogue(deployed(problem=NO_ROOM), 86_400)  # it would hang
    with pytest.raises(Unavailable, match="All places for cpu workers are taken"):
        await models.resolve("m", 86_400)


async def test_a_deployment_at_rest_is_no_unknown_name() -> None:
    models = catalogue(deployed(wanted=0), 86_400)
    with pytest.raises(Unavailable, match="none is wanted now"):
        await models.resolve("m", 86_400)
    assert models.all() == ()


async def test_a_model_that_sleeps_is_listed_and_who_asks_for_it_waits_longer() -> None:
    asleep = deployed(wanted=0)
    asleep.deployments[0].autoscaling.max_workers = 1
    view, limits = FleetView("gw", undialled), Limits(queue_timeout=0.0, cold_start_timeout=86_400)
    view.apply(asleep)
    queue = RequestQueue(view, place, limits, Metrics())
    models = Models(view, NoTexts(), queue, limits)  # type: ignore[arg-type]
    assert [(each.name, each.reason) for each in models.all()] == [
        ("m", "Model m has no worker while nobody asks for it: one is about to start.")
    ]
    assert (queue.patience("m"), queue.patience("other")) == (86_400, 0.0)
    waiting = asyncio.create_task(models.resolve("", 86_400))
    await asyncio.sleep(0)
    assert not waiting.done()
    waiting.cancel()
    asleep.version, asleep.deployments[0].autoscaling.min_workers = 2, 1
    view.apply(asleep)
    assert queue.patience("m") == 0.0


async def test_a_wait_ends_when_it_becomes_hopeless() -> None:
    view, limits = FleetView("gw", undialled), Limits(queue_timeout=86_400)
    view.apply(deployed(worker(STARTING, deployment="d")))
    models = Models(view, NoTexts(), RequestQueue(view, place, limits, Metrics()), limits)  # type: ignore[arg-type]
    waiting = asyncio.create_task(models.resolve("m", 86_400))
    await asyncio.sleep(0)
    view.apply(deployed(worker(UNHEALTHY, "no such file", deployment="d")))
    with pytest.raises(Unavailable, match="No such file"):
        await waiting

"""Snapshots of the fleet at a gateway: what it knows after them, and that unchanged workers cost no work."""

import random
from math import nan
from typing import Any

import pytest
from google.protobuf.message import DecodeError
from tests.support.undialled import undialled

from polyfleet.gateway.fleet.session import Session
from polyfleet.gateway.fleet.snapshot import Snapshot
from polyfleet.gateway.fleet.view import FleetView
from polyfleet.scheduler.fleet.snapshot_feed import Changes
from polyfleet.v1 import fleet_pb2 as pb
from polyfleet.v1 import worker_pb2

KINDS = pb.FleetSnapshot, pb.FleetSnapshotParts
READY, LOADING = pb.WORKER_STATE_READY, pb.WORKER_STATE_LOADING


def worker(number: int, load: int = 0, context: int = 100, state: "pb.WorkerState.ValueType" = READY) -> pb.FleetWorker:
    model = pb.ModelInfo(name="m", context_length=context, tokenizer_hash="h", fingerprint="f")
    info = pb.WorkerInfo(worker_id=f"w-{number:02}", address="a:1", accelerator="cpu", model=model)
    return pb.FleetWorker(info=info, status=pb.WorkerStatus(state=state, running_sequences=load))


@pytest.fixture
async def view(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A view whose sessions are connected, as far as they know."""
    monkeypatch.setattr(Session, "open", lambda session: setattr(session, "connected", True))
    return FleetView("gw", undialled)


def test_a_snapshot_in_parts_is_a_snapshot() -> None:
    whole, parts = ({each.name: each.number for each in kind.DESCRIPTOR.fields} for kind in KINDS)
    assert whole == parts
    sent = pb.FleetSnapshot(scheduler_epoch="e", version=3, workers=[worker(1)], pools=[pb.ModelDeployment(name="p")])
    read = pb.FleetSnapshotParts.FromString(sent.SerializeToString())
    assert [pb.FleetWorker.FromString(each) for each in read.workers] == list(sent.workers)
    assert (read.scheduler_epoch, read.version, list(read.pools)) == ("e", 3, list(sent.pools))


def test_a_worker_that_says_nothing_new_is_not_decoded_again() -> None:
    before = Snapshot().followed_by(pb.FleetSnapshot(workers=[worker(1), worker(2), worker(3)]))
    after = before.followed_by(pb.FleetSnapshot(workers=[worker(0), worker(1), worker(2, load=5)]))
    assert list(after.workers)[1] is next(iter(before.workers))
    assert after.not_in(before) == [worker(0), worker(2, load=5)]
    assert before.not_in(after) == [worker(2), worker(3)]


def test_what_has_changed_makes_the_same_snapshot_as_all_of_it() -> None:
    draw, changes, kept = random.Random(6), Changes(), Snapshot()
    fleet, sizes = dict[str, pb.FleetWorker](), list[int]()
    for version in range(60):
        for _ in range(draw.randrange(3)):
            each = worker(draw.randrange(8), draw.randrange(3), state=draw.choice((READY, LOADING)))
            fleet[each.info.worker_id] = each
        for worker_id in draw.sample(sorted(fleet), draw.randrange(2) * (len(fleet) > 3)):
            del fleet[worker_id]
        wishes = [pb.ModelDeployment(name="d", workers=draw.randrange(2))]
        whole = pb.FleetSnapshot(scheduler_epoch="e", version=version, workers=fleet.values(), deployments=wishes)
        sent = changes.since_last(whole, {each: found.SerializeToString() for each, found in fleet.items()})
        kept = kept.followed_by(pb.FleetSnapshotParts.FromString(sent.SerializeToString()))
        assert {each.info.worker_id: each for each in kept.workers} == fleet
        assert (sent.scheduler_epoch, sent.version, list(kept.deployments)) == ("e", version, wishes)
        sizes.append(len(sent.workers))
        assert (sent.partial, len(sent.workers) <= 2) == (True, True) or not version
    assert 0 in sizes


async def test_one_changed_load_is_the_work_of_one_worker(view: FleetView, monkeypatch: pytest.MonkeyPatch) -> None:
    view.apply(pb.FleetSnapshot(workers=map(worker, range(50))))
    reported, learned = list[str](), list[int]()
    report = view._report

    def counted(info: pb.WorkerInfo, status: pb.WorkerStatus) -> None:
        reported.append(info.worker_id)
        report(info, status)

    monkeypatch.setattr(view, "_report", counted)
    monkeypatch.setattr(view, "_learn", lambda: learned.append(1))
    view.apply(pb.FleetSnapshot(workers=[worker(each, load=9 * (each == 7)) for each in range(50)]))
    assert (reported, learned) == (["w-07"], [])
    found = view.fleet().worker("w-07")
    assert found is not None
    assert found.running_sequences == 9


async def test_any_way_to_a_snapshot_leads_to_the_same_view(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Session, "open", lambda session: None)
    draw = random.Random(5)
    kept = FleetView("gw", undialled)
    for _ in range(30):
        numbers = draw.sample(range(6), draw.randrange(6))
        workers = [worker(each, draw.randrange(3), state=draw.choice((READY, LOADING))) for each in numbers]
        for each in workers:
            each.info.address = draw.choice(("", "a:1", "b:1"))
            each.info.model.name = draw.choice("mn")
        sent = pb.FleetSnapshot(workers=workers, deployments=[pb.ModelDeployment(name="d", workers=draw.randrange(2))])
        fresh = FleetView("gw", undialled)
        for view in (kept, fresh):
            view.apply(sent)
        assert kept.sessions.keys() == fresh.sessions.keys()
        assert sorted(map(repr, kept.fleet().workers)) == sorted(map(repr, fresh.fleet().workers))
        assert [(each.model.name, each.model.reason) for each in kept.models()] == [
            (each.model.name, each.model.reason) for each in fresh.models()
        ]
        await fresh.close()
    await kept.close()


async def test_facts_follow_what_workers_and_snapshots_say(view: FleetView) -> None:
    def facts() -> tuple[int, int]:
        found = view.model("m")
        assert found is not None
        assert view.models() == (found,)
        return found.model.ready_workers, found.model.context_length

    def hear(worker_id: str, **status: Any) -> None:
        view.sessions[worker_id]._receive(worker_pb2.SessionEvent(status=pb.WorkerStatus(**status)))

    view.apply(pb.FleetSnapshot(workers=[worker(1), worker(2)]))
    assert facts() == (2, 100)
    view.apply(pb.FleetSnapshot(workers=[worker(1), worker(2, context=300)]))
    assert facts() == (2, 300)
    hear("w-02", state=READY, decode_tokens_per_second=-1.0)  # nonsense: it gets no requests
    assert facts() == (1, 100)
    hear("w-02", state=READY)
    assert facts() == (2, 300)
    for steps, seconds, sound in ((9, 3.0, 2), (10, 2.9, 1), (11, nan, 1), (12, 3.0, 2), (2, 0.5, 2), (3, -1.0, 1)):
        counters = pb.EngineCounters(step_seconds=seconds)  # time that goes back is nonsense, a new engine is none
        hear("w-02", state=READY, step=steps, counters=counters)
        assert facts()[0] == sound
    hear("w-02", state=READY, step=3, counters=pb.EngineCounters(step_seconds=0.5))
    hear("w-01", state=pb.WORKER_STATE_DRAINING)
    assert facts() == (1, 300)
    view.sessions["w-02"]._lose("gone")
    assert facts()[0] == 0


@pytest.mark.parametrize("field", ["reason", "problem", "context"])
async def test_what_is_more_than_load_is_told(view: FleetView, field: str) -> None:
    calls = list[int]()
    wish = pb.ModelDeployment(name="d", workers=1)
    view.apply(pb.FleetSnapshot(workers=[worker(1)], deployments=[wish]))
    view.changed.add(lambda: calls.append(1))
    view.apply(pb.FleetSnapshot(version=2, workers=[worker(1, load=3)], deployments=[wish]))
    assert calls == []
    changed = worker(1, context=200 if field == "context" else 100)
    changed.status.reason = "hot" if field == "reason" else ""
    wish.problem = "no room" if field == "problem" else ""
    view.apply(pb.FleetSnapshot(version=3, workers=[changed], deployments=[wish]))
    assert calls == [1]


async def test_an_unreadable_snapshot_changes_nothing_and_the_next_one_counts(view: FleetView) -> None:
    view.apply(pb.FleetSnapshot(workers=[worker(1)]))
    good = worker(2).SerializeToString()
    with pytest.raises(DecodeError):
        view.apply(pb.FleetSnapshotParts(workers=[good, b"\xff"]))
    assert view.sessions.keys() == {"w-01"}
    view.apply(pb.FleetSnapshotParts(workers=[worker(1).SerializeToString(), good]))
    assert view.sessions.keys() == {"w-01", "w-02"}

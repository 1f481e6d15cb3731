"""The fleet as a gateway sees it: snapshots, own sessions, and the load it has caused itself."""

import asyncio
from typing import Any

import pytest
from tests.support.undialled import undialled

from polyfleet.gateway.fleet import session as session_module
from polyfleet.gateway.fleet.session import Session
from polyfleet.gateway.fleet.view import FleetView
from polyfleet.gateway.listeners import Listeners
from polyfleet.placement.fleet import WorkerState
from polyfleet.v1 import fleet_pb2 as pb
from polyfleet.v1 import worker_pb2
from polyfleet.wire.answers import SequenceUpdate
from polyfleet.wire.requests import SequenceRequest

READY, DRAINING, LOST = pb.WORKER_STATE_READY, pb.WORKER_STATE_DRAINING, pb.WORKER_STATE_LOST


def info(worker_id: str = "w-1", model: str = "m", context: int = 100, **fields: Any) -> pb.WorkerInfo:
    served = pb.ModelInfo(name=model, context_length=context, vocabulary_size=50, tokenizer_hash="h-" + model)
    return pb.WorkerInfo(worker_id=worker_id, address="a:1", accelerator="cpu", model=served, **fields)


def worker(worker_id: str = "w-1", state: "pb.WorkerState.ValueType" = READY, **fields: Any) -> pb.FleetWorker:
    return pb.FleetWorker(info=info(worker_id, **fields), status=pb.WorkerStatus(state=state))


class Sink:
    """Notes what its session tells it."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.reasons: list[str] = []

    def updated(self, update: SequenceUpdate) -> None:
        self.tokens += [token.token_id for token in update.tokens]

    def lost(self, reason: str) -> None:
        self.reasons.append(reason)


def connected(changed: Listeners | None = None) -> Session:
    """A session that is connected, as far as it knows; it never dials."""
    session = Session(info(), "gw", undialled, changed or Listeners())
    session.report(info(), pb.WorkerStatus(state=READY, waiting_prefill_tokens=7))
    session._set_connected()
    return session


def event(state: "pb.WorkerState.ValueType" = READY, *deltas: worker_pb2.SequenceDelta, **load: int) -> Any:
    return worker_pb2.SessionEvent(status=pb.WorkerStatus(state=state, **load), deltas=deltas)  # type: ignore[arg-type]


def start(sequence_id: str, num_prompt: int) -> SequenceRequest:
    return SequenceRequest(sequence_id, (1,) * num_prompt)


async def test_a_worker_without_a_session_is_not_ready() -> None:
    session = Session(info(), "gw", undialled, Listeners())
    session.report(info(), pb.WorkerStatus(state=READY))
    assert session.worker().state is WorkerState.STARTING
    session._set_connected()
    assert session.worker().state is WorkerState.READY
    session._lose("broken")
    assert session.worker().state is WorkerState.LOST


async def test_what_the_session_says_is_fresher_than_the_fleet() -> None:
    session = connected()
    session._receive(event(READY, free_blocks=5))
    session.report(info(), pb.WorkerStatus(state=LOST, free_blocks=9))  # the scheduler can't hear it, we can
    assert (session.worker().state, session.worker().free_blocks) == (WorkerState.READY, 5)


async def test_own_starts_count_until_the_worker_reports_them() -> None:
    session = connected()
    session._receive(event(waiting_sequences=1, waiting_prefill_tokens=7))
    session.start(start("a", 10), Sink())
    session.start(start("b", 20), Sink())
    assert (session.worker().waiting_sequences, session.worker().waiting_prefill_tokens) == (3, 37)
    delta = worker_pb2.SequenceDelta(sequence_id="a", token_ids=[1])
    session._receive(event(READY, delta))  # a has begun; the report may have left before b came
    assert (session.worker().waiting_sequences, session.worker().waiting_prefill_tokens) == (1, 20)
    session._receive(event())
    assert (session.worker().waiting_sequences, session.worker().waiting_prefill_tokens) == (0, 0)


async def test_own_starts_count_for_as_long_as_the_worker_says() -> None:
    """An engine in a long step sees nothing of them, however many heartbeats come."""
    session = connected()
    for name in "abc":
        session.start(start(name, 10), Sink())
    for reported, counted in ((0, 3), (0, 3), (0, 3), (1, 2), (3, 0)):
        news = event()
        news.reported_starts = reported
        session._receive(news)
        assert session.worker().waiting_sequences == counted
        assert session.worker().waiting_prefill_tokens == 10 * counted
    session._lose("broken")
    session._set_connected()
    session.start(start("d", 10), Sink())  # the first one of the new session
    news = event()
    news.reported_starts = 1
    session._receive(news)
    assert session.worker().waiting_sequences == 0


async def test_a_cancelled_start_does_not_count_and_hears_nothing_more() -> None:
    session, sink = connected(), Sink()
    session.start(start("a", 10), sink)
    session.cancel("a")
    session._receive(event(READY, worker_pb2.SequenceDelta(sequence_id="a", token_ids=[1])))
    assert session.worker().waiting_sequences == 0
    assert (sink.tokens, session.num_sequences) == ([], 0)


async def test_a_loss_is_told_once_to_each_open_sequence() -> None:
    session, ended, running = connected(), Sink(), Sink()
    session.start(start("ended", 1), ended)
    session.start(start("running", 1), running)
    session._receive(event(READY, worker_pb2.SequenceDelta(sequence_id="ended", finish_reason=1)))  # type: ignore[arg-type]
    session._lose("broken")
    session._lose("broken")
    assert (ended.reasons, running.reasons) == ([], ["broken"])
    assert session.worker().waiting_sequences == 0


async def test_changes_of_state_are_told_and_loads_are_not() -> None:
    changed, calls = Listeners(), list[int]()
    changed.add(lambda: calls.append(1))
    session = connected(changed)
    assert len(calls) == 1
    session._receive(event(READY, running_sequences=1))
    session._receive(event(READY, running_sequences=2))
    assert len(calls) == 1
    session._receive(event(DRAINING))
    assert len(calls) == 2


@pytest.fixture
async def view(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A view whose sessions find nobody."""
    monkeypatch.setattr(session_module, "REDIAL_SECONDS", (60.0, 60.0))
    view = FleetView("gw", undialled)
    yield view
    await view.close()


async def test_models_are_those_deployed_and_those_served(view: FleetView) -> None:
    wish = pb.ModelDeployment(name="d", model_name="wished", workers=1, created_unix_seconds=5)
    none = pb.ModelDeployment(name="asleep", workers=0)
    workers = [worker("w-1", context=10), worker("w-2", context=20), worker("w-3", model="n")]
    view.apply(pb.FleetSnapshot(workers=workers, deployments=[wish, none]))
    assert [facts.model.name for facts in view.models()] == ["m", "n", "wished"]
    view.sessions["w-1"]._set_connected()
    facts = view.model("m")
    assert facts is not None
    assert (facts.model.ready_workers, facts.model.context_length, facts.model.accelerators) == (1, 10, ("cpu",))
    wished = view.model("wished")
    assert wished is not None
    assert (wished.model.created_unix_seconds, wished.info) == (5, None)
    asleep = view.model("asleep")  # not listed, and no unknown name
    assert asleep is not None
    assert "none is wanted now" in asleep.model.reason
    assert view.model("never wanted") is None
    assert view.tokenizer_hashes() == {"h-m", "h-n"}


async def test_a_model_is_remembered_while_it_is_deployed(view: FleetView) -> None:
    wish = pb.ModelDeployment(name="m", workers=1)
    view.apply(pb.FleetSnapshot(workers=[worker()], deployments=[wish]))
    view.apply(pb.FleetSnapshot(deployments=[wish]))
    facts = view.model("m")
    assert facts is not None
    assert facts.info is not None
    assert (facts.info.context_length, facts.model.ready_workers) == (100, 0)
    view.apply(pb.FleetSnapshot())
    assert view.model("m") is None
    assert view.tokenizer_hashes() == frozenset()


def revision(worker_id: str, fingerprint: str, tokenizer: str, state: "pb.WorkerState.ValueType" = READY) -> Any:
    each = worker(worker_id, state)
    each.info.model.fingerprint, each.info.model.tokenizer_hash = fingerprint, tokenizer
    return each


async def test_what_an_unready_worker_says_counts_for_nothing(view: FleetView) -> None:
    others = [LOST, DRAINING, pb.WORKER_STATE_LOADING, pb.WORKER_STATE_UNHEALTHY]
    fakes = [revision(f"w-{state}", "fake", "h-fake", state) for state in others]
    view.apply(pb.FleetSnapshot(workers=fakes))
    facts = view.model("m")
    assert facts is not None
    assert (facts.info, facts.model.context_length, view.tokenizer_hashes()) == (None, 0, frozenset())
    view.apply(pb.FleetSnapshot(version=2, workers=[*fakes, revision("w-9", "real", "h-real")]))
    view.apply(pb.FleetSnapshot(version=3, workers=[*fakes, revision("w-9", "real", "h-real", DRAINING)]))
    facts = view.model("m")
    assert facts is not None
    assert facts.info is not None
    assert (facts.info.fingerprint, view.tokenizer_hashes()) == ("real", frozenset({"h-real"}))


async def test_new_requests_go_where_most_ready_workers_are(view: FleetView, caplog: pytest.LogCaptureFixture) -> None:
    def chosen() -> tuple[str, str, int]:
        facts = view.model("m")
        assert facts is not None
        assert facts.info is not None
        return facts.info.fingerprint, facts.info.tokenizer_hash, facts.model.ready_workers

    def publish(*workers: Any) -> None:
        view.apply(pb.FleetSnapshot(workers=workers))
        for session in view.sessions.values():
            session.connected = True
            session._touch(told=True)
        view.changed.call()

    old = [revision("w-3", "old", "h-old"), revision("w-4", "old", "h-old")]
    new = [revision("w-1", "new", "h-new"), revision("w-2", "new", "h-new"), revision("w-5", "new", "h-new")]
    publish(*old)
    assert chosen() == ("old", "h-old", 2)
    publish(*old, new[0])
    publish(*old, new[0])
    assert chosen() == ("old", "h-old", 2)
    assert [getattr(record, "workers", None) for record in caplog.records] == [["w-1"]]
    assert view.successor("m", "new", "h-new") == "new"
    assert view.successor("m", "gone", "h-new") == "new"
    assert view.successor("m", "gone", "h-old") == "old"
    assert view.successor("m", "gone", "h-gone") == "gone"
    publish(*old, *new)
    assert chosen() == ("new", "h-new", 3)


async def test_a_worker_that_left_the_snapshot_stays_while_its_session_lives(view: FleetView) -> None:
    view.apply(pb.FleetSnapshot(scheduler_epoch="a", workers=[worker("w-1"), worker("w-2")]))
    view.sessions["w-1"]._set_connected()
    view.apply(pb.FleetSnapshot(scheduler_epoch="b"))
    assert list(view.sessions) == ["w-1"]
    assert view.num_ready() == 1
    view.sessions["w-1"]._lose("gone")
    assert view.sessions == {}


async def test_a_pool_smaller_than_the_context_bounds_a_sequence(view: FleetView) -> None:
    each = worker()
    each.info.model.block_size, each.info.model.num_blocks = 16, 4
    view.apply(pb.FleetSnapshot(workers=[each]))
    facts = view.model("m")
    assert facts is not None
    assert facts.model.context_length == 64


async def test_workers_without_an_address_are_left_alone(view: FleetView) -> None:
    each = worker()
    each.info.address = ""
    view.apply(pb.FleetSnapshot(workers=[each]))
    assert view.sessions == {}


async def test_only_what_matters_counts_as_a_change(view: FleetView) -> None:
    calls: list[int] = []
    view.apply(pb.FleetSnapshot(workers=[worker()]))
    view.changed.add(lambda: calls.append(1))
    busy = worker()
    busy.status.running_sequences = 5
    view.apply(pb.FleetSnapshot(version=2, workers=[busy]))
    assert calls == []
    view.apply(pb.FleetSnapshot(version=3, workers=[worker(state=DRAINING)]))
    assert calls == [1]
    await asyncio.sleep(0)

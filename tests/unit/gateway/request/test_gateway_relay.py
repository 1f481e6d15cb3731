"""A sequence on its way: what it asks of workers, when it moves, parks, gives up."""

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import pytest

from polyfleet.gateway.config import Limits
from polyfleet.gateway.errors import Aborted, ApiError, Code, Internal
from polyfleet.gateway.fleet.session import Session
from polyfleet.gateway.metrics import Metrics
from polyfleet.gateway.request.inbox import Inbox, Parcel
from polyfleet.gateway.request.queue import RequestQueue
from polyfleet.gateway.request.relay import SequenceRelay
from polyfleet.gateway.request.token_times import TokenTimes
from polyfleet.gateway.request.turn import Turn
from polyfleet.placement.fleet import Revision, Worker, WorkerState
from polyfleet.placement.prefixes import PrefixMap
from polyfleet.wire.answers import FinishReason, SampledToken, SequenceUpdate
from polyfleet.wire.requests import Pooling, SequenceRequest
from polyfleet.wire.sampling import SamplingParams


class FakeQueue:
    """Notes who waits."""

    def __init__(self) -> None:
        self.waiting: list[SequenceRelay] = []
        self.prefixes: PrefixMap | None = None

    def submit(self, relay: SequenceRelay) -> None:
        self.waiting.append(relay)

    def withdraw(self, relay: SequenceRelay) -> None:
        self.waiting.remove(relay)

    def fleet_changed(self) -> None:
        pass

    def prefix_source(self, *_: object) -> None:
        """Nobody else holds anything."""


class FakeSession:
    """Notes what it is told."""

    def __init__(self, worker_id: str = "w-1", context: int = 100) -> None:
        self.worker_id = worker_id
        self.started: list[SequenceRequest] = []
        self.cancelled: list[str] = []
        self._worker = Worker(worker_id, "a:1", "m", "cpu", WorkerState.READY, context_length=context)

    def worker(self) -> Worker:
        return self._worker

    def start(self, start: SequenceRequest, sink: object, grains: Sequence[int]) -> None:
        self.started.append(start)
        self.grains = grains

    def cancel(self, sequence_id: str) -> None:
        self.cancelled.append(sequence_id)


class Rig:
    """One relay with everything around it faked."""

    def __init__(self, limits: Limits | None = None, **spec: Any) -> None:
        self.queue, self.inbox, self.metrics = FakeQueue(), Inbox(), Metrics()
        wanted: dict[str, Any] = {"request_id": "r", "max_tokens": 10} | spec
        asked = SequenceRequest("", (1, 2, 3), SamplingParams(seed=5), **wanted)
        self.times = TokenTimes()
        queue = cast(RequestQueue, self.queue)
        self.relay = SequenceRelay(asked, Turn("m"), self.inbox, queue, limits or Limits(), self.metrics, self.times)
        self.relay.start()

    def grant(self, worker_id: str = "w-1", context: int = 100) -> FakeSession:
        session = FakeSession(worker_id, context)
        self.queue.waiting.remove(self.relay)
        self.relay.granted(cast(Session, session))
        return session

    def give(self, *token_ids: int, finish: FinishReason | None = None) -> None:
        self.relay.updated(SequenceUpdate("", tuple(map(SampledToken, token_ids)), finish))

    async def failure(self) -> ApiError:
        if self.inbox.num_tokens:
            await self.inbox.take()
        with pytest.raises(ApiError) as caught:
            await self.inbox.take()
        return caught.value


def ids(parcel: Parcel) -> list[int]:
    return [token.token_id for token in parcel.tokens]


async def test_a_move_takes_along_what_was_generated() -> None:
    rig = Rig(logit_bias={5: -1.5})
    first = rig.grant("w-1")
    rig.give(7, 8)
    rig.relay.lost("gone")
    needs = rig.relay.needs()
    assert (needs.prompt_tokens, needs.max_tokens, needs.excluded) == (5, 8, frozenset({"w-1"}))
    second = rig.grant("w-2")
    assert (list(second.started[0].generated_ids), second.started[0].max_tokens) == ([7, 8], 10)
    assert first.started[0].logit_bias == second.started[0].logit_bias == {5: -1.5}
    assert second.started[0].sequence_id != first.started[0].sequence_id
    rig.give(9)
    (parcel,) = await rig.inbox.take()
    assert (ids(parcel), parcel.worker_id) == ([7, 8, 9], "w-2")


async def test_a_worker_that_died_after_its_last_token_had_finished() -> None:
    rig = Rig(max_tokens=2)
    rig.grant()
    rig.give(7, 8)
    rig.relay.lost("gone")
    assert rig.queue.waiting == []
    (parcel,) = await rig.inbox.take()
    assert (ids(parcel), parcel.finish_reason) == ([7, 8], FinishReason.LENGTH)


async def test_without_max_tokens_the_workers_room_counts_anew_after_a_move() -> None:
    rig = Rig(max_tokens=None)
    assert rig.relay.needs().max_tokens == 1
    assert rig.grant("w-1", context=50).started[0].max_tokens == 47
    rig.give(7)
    rig.relay.lost("gone")
    assert (rig.relay.needs().prompt_tokens, rig.relay.needs().max_tokens) == (4, 1)
    assert rig.grant("w-2", context=20).started[0].max_tokens == 17


async def test_without_max_tokens_there_must_be_room_for_the_least() -> None:
    rig = Rig(max_tokens=None, min_tokens=9)
    assert rig.relay.needs().max_tokens == 9
    assert rig.grant("w-1", context=50).started[0].min_tokens == 9
    rig.give(7, 8)
    rig.relay.lost("gone")
    assert rig.relay.needs().max_tokens == 7
    assert rig.grant("w-2").started[0].min_tokens == 9  # those generated before count


async def test_an_embedding_needs_no_room_behind_its_prompt() -> None:
    rig = Rig(max_tokens=1, pooling=Pooling.MEAN)
    assert rig.relay.needs().max_tokens == 0


async def test_a_client_that_does_not_read_parks_its_sequence() -> None:
    rig = Rig(Limits(max_pending_tokens=3), max_tokens=50)
    first = rig.grant()
    rig.give(1, 2, 3)
    assert first.cancelled == []
    rig.give(4)
    assert first.cancelled == [first.started[0].sequence_id]
    assert rig.queue.waiting == []
    assert ids((await rig.inbox.take())[0]) == [1, 2, 3, 4]
    rig.relay.unpark()
    rig.relay.unpark()
    assert rig.queue.waiting == [rig.relay]
    assert list(rig.grant().started[0].generated_ids) == [1, 2, 3, 4]
    assert rig.metrics.registry.get_sample_value("polyfleet_migrations_total", {"result": "resumed"}) is None


async def test_tokens_are_timed_as_they_arrive_and_not_while_parked(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    rig = Rig(Limits(max_pending_tokens=2), max_tokens=50)
    rig.grant()
    for _ in range(3):
        rig.give(1)
        now[0] += 1
    now[0] += 1000  # before the client takes anything
    await rig.inbox.take()
    rig.relay.unpark()
    rig.grant()
    rig.give(1)
    now[0] += 1
    rig.give(1)
    assert (rig.times.first, rig.times.per_token) == (100, 1.0)


async def test_cancelling_works_in_every_state() -> None:
    waiting = Rig()
    waiting.relay.cancel()
    assert waiting.queue.waiting == []
    running = Rig()
    session = running.grant()
    running.relay.cancel()
    running.relay.cancel()
    assert len(session.cancelled) == 1
    parked = Rig(Limits(max_pending_tokens=1), max_tokens=50)
    parked.grant()
    parked.give(1, 2)
    parked.relay.cancel()
    parked.relay.unpark()
    assert parked.queue.waiting == []
    for rig in (waiting, running, parked):
        rig.relay.lost("late")
        assert rig.queue.waiting == []


async def test_what_can_not_go_on_fails_with_what_it_means() -> None:
    faulty = Rig()
    faulty.grant()
    faulty.give(7)
    faulty.relay.updated(SequenceUpdate("", error="the step failed", code=13))
    assert isinstance(await faulty.failure(), Internal)


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("crash", [False, True])
async def test_a_sequence_that_lost_more_workers_than_it_may_is_not_tried_again(begun: bool, crash: bool) -> None:
    rig = Rig(Limits(max_moves=2))
    for worker_id in ("w-1", "w-2", "w-3"):
        rig.grant(worker_id)
        if begun:
            rig.give(7)
        if crash:  # of the engine, which the worker outlives
            rig.relay.updated(SequenceUpdate("", error="Its engine ended.", code=Code.UNAVAILABLE, broken=True))
        else:
            rig.relay.lost("gone")
    assert rig.queue.waiting == []
    failure = await rig.failure()
    assert isinstance(failure, Aborted)
    assert failure.retry_after is None
    assert failure.message.startswith("The request lost its worker 3 times, and may move 2 times (limits.max_moves)")
    assert failure.message.endswith("The worker failed: Its engine ended." if crash else "The worker was lost: gone.")
    value = rig.metrics.registry.get_sample_value
    assert [value("polyfleet_migrations_total", {"result": each}) for each in ("over_budget", "resumed", "failed")] == [
        *(1, 2, None)
    ]


async def test_a_step_that_failed_on_the_device_goes_on_elsewhere() -> None:
    rig = Rig()
    rig.grant("w-1")
    rig.give(7, 8)
    rig.relay.updated(SequenceUpdate("", error="the engine could not compute a step: device lost", broken=True))
    assert rig.relay.needs().excluded == {"w-1"}
    assert list(rig.grant("w-2").started[0].generated_ids) == [7, 8]


@pytest.mark.parametrize("broken", [False, True])
async def test_workers_that_leave_as_they_were_told_to_cost_a_sequence_nothing(broken: bool) -> None:
    rig = Rig(Limits(max_moves=0))
    for number in range(5):
        session = rig.grant(f"w-{number}")
        session._worker = replace(session.worker(), state=WorkerState.DRAINING)
        if broken:
            rig.relay.lost("the worker ended the session")
        else:
            rig.relay.updated(SequenceUpdate("", error="The worker is stopping.", code=Code.UNAVAILABLE))
    rig.grant("w-5")
    rig.give(7, finish=FinishReason.STOP)
    (parcel,) = await rig.inbox.take()
    assert ids(parcel) == [7]


@pytest.mark.parametrize(
    ("state", "update", "counted"),
    [
        (WorkerState.READY, SequenceUpdate("", (), FinishReason.STOP), (1, 0)),
        (WorkerState.READY, SequenceUpdate("", (), error="boom", code=Code.INTERNAL), (1, 1)),
        (WorkerState.READY, SequenceUpdate("", (), error="suspended", code=Code.UNAVAILABLE), (1, 1)),
        (WorkerState.DRAINING, SequenceUpdate("", (), error="leaves", code=Code.UNAVAILABLE), (0, 0)),
        (WorkerState.READY, SequenceUpdate("", (), error="full", code=Code.RESOURCE_EXHAUSTED), (0, 0)),
        (WorkerState.READY, SequenceUpdate("", (), error="bad", code=Code.INVALID_ARGUMENT), (0, 0)),
        (WorkerState.READY, None, (1, 1)),
    ],
)
async def test_how_it_fared_counts_for_its_workers_revision(
    state: WorkerState, update: SequenceUpdate | None, counted: tuple[int, int]
) -> None:
    rig = Rig()
    session = rig.grant()
    session._worker = replace(session.worker(), revision=Revision("d", 3), state=state)
    if update is None:
        rig.relay.lost("gone")
    else:
        rig.relay.updated(update)
    totals = rig.metrics.demand.revisions()
    assert [(each.revision, each.sequences, each.errors) for each in totals] == [(3, *counted)] * bool(counted[0])
    rig.metrics.demand.keep(set())
    assert rig.metrics.demand.revisions() == []

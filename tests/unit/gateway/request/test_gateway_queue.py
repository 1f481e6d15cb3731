"""The queue in front of the fleet: turns, order, bounds, isolation of models."""

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.support.gateway_rig import until
from tests.support.queue_rig import Fleet, Rig, Wish

from polyfleet.gateway.config import Limits
from polyfleet.gateway.errors import ResourceExhausted, Unavailable
from polyfleet.gateway.fleet.session import Session
from polyfleet.gateway.metrics import Metrics
from polyfleet.gateway.request.queue import RequestQueue
from polyfleet.gateway.request.turn import Turn
from polyfleet.placement.fleet import PlacementRequest, Role, Worker, WorkerState
from polyfleet.placement.place import place
from polyfleet.process.keys import Tenant
from polyfleet.v1 import fleet_pb2
from polyfleet.wire.tickets import TransferOffer


async def test_a_candidate_is_placed_at_once_when_a_worker_is_free() -> None:
    rig = Rig()
    rig.fleet.serve({"w": "m"})
    rig.submit()
    assert rig.log == ["m@w"]
    assert rig.queued() == 0


async def test_who_can_not_be_in_time_any_more_is_turned_away_and_told_when_to_come_back() -> None:
    rig = Rig()
    rig.fleet.serve({"w": "m"})
    seconds = 5.0  # that the prompts which wait there take
    busy = {"waiting_sequences": 1, "waiting_prefill_tokens": 500, "prefill_tokens_per_second": 100.0}
    rig.fleet.workers = tuple(replace(each, decode_tokens_per_second=50.0, **busy) for each in rig.fleet.workers)  # type: ignore[arg-type]
    late, timely = (rig.submit(turn=Turn("m", seconds_left=lambda left=left: left)) for left in (1.0, 90.0))  # type: ignore[misc]
    assert isinstance(late.error, ResourceExhausted)
    assert late.error.retry_after is not None
    assert late.error.retry_after > seconds - 1
    assert timely.error is None
    assert rig.submit().error is None  # without a deadline it may take what it takes
    assert rig.log == ["m@w", "m@w"]
    going = rig.submit(turn=Turn("m", seconds_left=lambda: 0.1, taken=True))  # never in the middle
    assert going.error is None


async def test_those_who_wait_are_placed_when_a_worker_comes() -> None:
    rig = Rig()
    rig.submit(name="a")
    rig.submit(name="b", priority=1)
    assert rig.queued() == 2
    rig.fleet.serve({"w": "m"})
    await until(lambda: len(rig.log) == 2)
    assert rig.log == ["b@w", "a@w"]
    assert rig.queued() == 0


async def test_one_that_goes_on_after_a_loss_is_first() -> None:
    rig = Rig(max_concurrent=10)
    rig.fleet.serve({"w": "m"})
    turn = rig.submit(name="x").turn
    rig.fleet.serve({})
    rig.submit(name="urgent", priority=100)
    rig.queue.submit(Wish(turn, rig.log, "resumed", resumed=True))
    assert rig.queued() == 1  # a request that has its turn is not queued
    rig.fleet.serve({"w": "m"})
    await until(lambda: len(rig.log) == 3)
    assert rig.log[1:] == ["resumed@w", "urgent@w"]


async def test_turns_bound_requests_not_sequences() -> None:
    rig = Rig(max_concurrent=1)
    rig.fleet.serve({"w": "m"})
    turn = Turn("m")
    for name in "abc":
        rig.submit(name=name, turn=turn)
    assert len(rig.log) == 3
    rig.submit(name="next")
    await asyncio.sleep(0.01)
    assert (len(rig.log), rig.queued()) == (3, 1)
    rig.queue.give_back(turn)
    await until(lambda: rig.log[-1] == "next@w")
    assert rig.queued() == 0


async def test_a_turn_is_given_back_once() -> None:
    rig = Rig(max_concurrent=1)
    rig.fleet.serve({"w": "m"})
    turn = rig.submit().turn
    rig.queue.give_back(turn)
    rig.queue.give_back(turn)
    rig.submit(name="second")
    rig.submit(name="third")
    await asyncio.sleep(0.01)
    assert rig.log[1:] == ["second@w"]


async def test_who_waits_hears_at_once_what_waiting_will_not_change() -> None:
    fleet, log, metrics = Fleet(), list[str](), Metrics()
    queue = RequestQueue(fleet, place, Limits(queue_timeout=86_400), metrics)
    wish, other = Wish(Turn("m"), log), Wish(Turn("other"), log)
    queue.submit(wish)
    queue.submit(other)
    reason = "All places for cpu workers are taken."
    fleet.apply(fleet_pb2.FleetSnapshot(deployments=[fleet_pb2.ModelDeployment(name="m", workers=1, problem=reason)]))
    await until(lambda: wish.error is not None)
    assert isinstance(wish.error, Unavailable)
    assert wish.error.message == f"Model m has no worker. {reason}"
    assert wish.error.retry_after
    assert other.error is None
    late = Wish(Turn("m"), log)
    queue.submit(late)
    await until(lambda: late.error is not None)
    queue.withdraw(other)
    assert metrics.registry.get_sample_value("polyfleet_requests_queued", {"model": "m"}) == 0


async def test_a_full_queue_refuses_and_counts_requests_once() -> None:
    rig = Rig(max_queued=2)
    turn = Turn("m")
    for _ in range(4):
        rig.submit(turn=turn)
    with rig.queue.seat("m"), pytest.raises(ResourceExhausted) as caught:
        rig.submit()
    assert caught.value.retry_after
    assert caught.value.quota == "max_queued"
    rig.submit()
    assert rig.queued() == 2


async def test_withdrawing_frees_the_place() -> None:
    rig = Rig(max_queued=1)
    first = rig.submit()
    rig.queue.withdraw(first)
    rig.queue.withdraw(first)
    assert rig.queued() == 0
    rig.submit(name="second")
    rig.fleet.serve({"w": "m"})
    await until(lambda: rig.log == ["second@w"])


async def test_nobody_waits_longer_than_the_limit() -> None:
    rig = Rig(queue_timeout=0.02)
    rig.fleet.serve({"w": "other"})
    wish = rig.submit()
    await until(lambda: wish.error is not None)
    assert isinstance(wish.error, Unavailable)
    assert "w: serves other" in wish.error.message
    assert wish.error.retry_after
    assert rig.queued() == 0


async def test_a_model_without_workers_holds_up_no_other() -> None:
    rig = Rig(max_concurrent=3)
    rig.fleet.serve({"w": "m"})
    for _ in range(5):
        rig.submit("dead")
    turns = [rig.submit().turn for _ in range(3)]
    assert rig.log == ["m@w"] * 3
    rig.queue.give_back(turns.pop())
    await asyncio.sleep(0.01)
    before = rig.num_places
    for turn in turns:  # a turn that comes free does not make the dead model's requests be tried again
        rig.queue.give_back(turn)
    await asyncio.sleep(0.01)
    assert rig.num_places == before
    rig.fleet.serve({"w": "m", "w-2": "dead"})
    await until(lambda: rig.log[3:] == ["dead@w-2"] * 3)


async def test_tenants_that_wait_are_served_by_their_weights() -> None:
    rig = Rig()
    rig.tenants = {"b": Tenant("b", weight=2)}
    for number in range(6):
        for tenant in "ab":
            rig.submit(name=f"{tenant}{number}", turn=Turn("m", tenant=tenant))
    rig.fleet.serve({"w": "m"})
    await until(lambda: len(rig.log) == 12)
    assert "".join(name[0] for name in rig.log[:9]) == "abbabbabb"


async def test_a_tenant_that_comes_late_is_not_behind_anothers_backlog() -> None:
    rig = Rig()
    for number in range(20):
        rig.submit(name=f"a{number}", turn=Turn("m", tenant="a"))
    rig.submit(name="b0", turn=Turn("m", tenant="b"))
    rig.fleet.serve({"w": "m"})
    await until(lambda: len(rig.log) == 21)
    assert rig.log.index("b0@w") <= 1


async def test_where_the_queue_is_full_the_last_in_order_makes_way() -> None:
    rig = Rig(max_queued=3)
    backlog = [rig.submit(name=f"a{number}", turn=Turn("m", tenant="a")) for number in range(3)]
    with pytest.raises(ResourceExhausted, match="The queue is full: 3 requests wait already"):
        rig.submit(turn=Turn("m", tenant="a"))
    rig.submit(name="b", turn=Turn("m", tenant="b"))
    assert [type(each.error) for each in backlog] == [type(None), type(None), ResourceExhausted]
    assert backlog[2].error is not None
    assert (backlog[2].error.quota, backlog[2].error.retry_after) == ("max_queued", 1.0)
    urgent = rig.submit(name="urgent", turn=Turn("m", priority=5, tenant="a"))
    assert rig.queued() == 3
    rig.fleet.serve({"w": "m"})
    await until(lambda: len(rig.log) == 3)
    assert (rig.log[0], urgent.error) == ("urgent@w", None)


async def test_requests_wait_here_while_their_worker_has_enough() -> None:
    rig = Rig()
    rig.fleet.serve({"w": "m"})
    rig.fleet.workers = (replace(rig.fleet.workers[0], max_sequences=8, waiting_sequences=2),)
    going = Turn("m", tenant="a", taken=True)
    rig.queue.submit(Wish(going, rig.log, "goes on", resumed=True))
    for tenant in "ab":
        rig.submit(name=tenant, turn=Turn("m", tenant=tenant))
    await asyncio.sleep(0.05)
    assert rig.log == ["goes on@w"]
    rig.fleet.workers = (replace(rig.fleet.workers[0], waiting_sequences=1),)  # no change of the fleet, but room
    await until(lambda: len(rig.log) == 3)


async def test_who_waited_for_room_is_not_overtaken_when_a_request_ends() -> None:
    rig = Rig()
    rig.fleet.serve({"w": "m"})
    going = rig.submit(name="goes on", turn=Turn("m", tenant="a")).turn
    rig.fleet.workers = (replace(rig.fleet.workers[0], max_sequences=8, waiting_sequences=2),)
    for number in range(20):
        rig.submit(name=f"a{number}", turn=Turn("m", tenant="a"))
    rig.submit(name="b", turn=Turn("m", tenant="b"))
    await asyncio.sleep(0.05)  # all have been looked at that are looked at
    assert rig.log == ["goes on@w"]
    rig.fleet.workers = (replace(rig.fleet.workers[0], waiting_sequences=0),)
    rig.queue.give_back(going)  # nothing else says that there is room
    await until(lambda: len(rig.log) == 22)
    assert rig.log.index("b@w") <= 2


@pytest.mark.parametrize(("address", "expected"), [("h:1", "at prompts"), ("", "no_channel")])
async def test_a_long_prompt_is_computed_by_a_worker_for_that(address: str, expected: str) -> None:
    rig = Rig()
    rates: dict[str, Any] = {
        "prefill_tokens_per_second": 1000.0,
        "decode_tokens_per_second": 50.0,
        "context_length": 4096,
    }
    crowded: dict[str, Any] = {**rates, "running_sequences": 40, "max_sequences": 64}
    rig.fleet.workers = (
        Worker("prompts", "a:1", "m", "cpu", WorkerState.READY, role=Role.PREFILL, **rates),
        Worker("decodes", "a:2", "m", "cpu", WorkerState.READY, role=Role.DECODE, **crowded),
    )
    info = SimpleNamespace(model=SimpleNamespace(fingerprint="f"))
    rig.fleet.sessions = {
        each.worker_id: cast(
            Session,
            SimpleNamespace(worker_id=each.worker_id, info=info, connected=True, offer=TransferOffer(address)),
        )
        for each in rig.fleet.workers
    }
    wish = Wish(Turn("m"), rig.log)
    wish.needs = lambda: PlacementRequest("m", 2048, 64)  # type: ignore[method-assign]
    rig.queue.submit(wish)
    assert rig.log == ["m@decodes"]
    assert wish.turn.prefills == [expected]
    decision = "apart" if address else "no_channel"
    assert rig.metrics.registry.get_sample_value("polyfleet_prefills_total", {"decision": decision}) == 1

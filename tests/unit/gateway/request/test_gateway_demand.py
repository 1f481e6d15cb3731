"""What a gateway tells of its requests: what models want now, and how long requests wait."""

from prometheus_client import CollectorRegistry

from polyfleet.gateway.demand import RECENT_SECONDS, Demand


def test_waits_are_those_of_the_last_half_minute_or_the_one_that_still_lasts() -> None:
    now = [100.0]
    demand = Demand(CollectorRegistry(), lambda: now[0])
    model = demand.of("m")
    for wait in range(10):
        model.waited(wait / 10)
    assert model.queue_seconds == 0.8
    now[0] += RECENT_SECONDS + 1
    assert model.queue_seconds == 0
    demand.enter("m")
    now[0] += 7
    assert model.queue_seconds == 7
    demand.enter("m")
    model.leave()  # the first one has its worker: the other one waits from here on at most
    now[0] += 2
    assert model.queue_seconds == 2
    model.leave()
    assert model.queue_seconds == 0


def test_the_scheduler_hears_at_once_of_the_first_that_waits() -> None:
    demand = Demand(CollectorRegistry())
    demand.enter("m")
    assert demand.urgent.is_set()
    demand.urgent.clear()
    demand.enter("m")
    assert not demand.urgent.is_set()
    demand.of("m").inflight = 5
    (told,) = demand.models()
    assert (told.model, told.queued, told.running) == ("m", 2, 3)

"""The numbers that the console keeps."""

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyfleet.console.fleet import view
from polyfleet.console.fleet.devices import MAX_CHANGES, DeviceHistory, readings
from polyfleet.console.fleet.history import RECENT_SECONDS, ROWS, STEP_SECONDS, Columns, latencies, quantiles
from polyfleet.console.fleet.words import health_word, state_word
from polyfleet.v1 import fleet_pb2
from polyfleet.v1 import operations_pb2 as pb


@settings(deadline=None)
@given(st.lists(st.integers(0, 1000), min_size=1, max_size=50))
def test_quantiles_lie_between_the_values(values: list[int]) -> None:
    median, last = quantiles(values)
    assert median is not None
    assert last is not None
    assert min(values) <= median <= last <= max(values)


def test_of_nothing_there_are_no_quantiles() -> None:
    assert quantiles([]) == (None, None)


def test_an_hour_is_kept_a_row_a_step_and_what_is_unknown_stays_so() -> None:
    columns = Columns("use")
    for number in range(ROWS + 5):
        columns.add(number * STEP_SECONDS, {"use": None if number % 2 else 0.5})
        columns.add(number * STEP_SECONDS + 1, {"use": 9.0})  # too soon
    told = columns.told()
    assert len(told["at"]) == len(told["use"]) == ROWS
    assert (told["at"][0], told["at"][-1]) == (5 * STEP_SECONDS, (ROWS + 4) * STEP_SECONDS)
    assert set(told["use"]) == {None, 0.5}


def test_a_clock_that_is_set_back_keeps_no_row_of_a_time_to_come_and_goes_on() -> None:
    columns = Columns("use", "memory")
    for at in (7000.0, 7300.0, 7310.0, 7309.0):
        columns.add(at, {"use": 1.0, "memory": at})
    assert columns.told()["at"] == [7000.0, 7300.0, 7310.0]
    for at in (7200.0, 7210.0):
        columns.add(at, {"use": 0.0, "memory": at})
    assert columns.told() == {
        "at": [7000.0, 7200.0, 7210.0],
        "use": [1.0, 0.0, 0.0],
        "memory": [7000.0, 7200.0, 7210.0],
    }


class Link:
    """A scheduler whose one worker has made 100 tokens more with each look."""

    def __init__(self) -> None:
        self.tokens = 0

    async def call(self, method: str, _: Any, answer: type, *__: Any) -> Any:
        if method != "ListWorkers":
            return answer()
        self.tokens += 100
        worker = fleet_pb2.FleetWorker(info=fleet_pb2.WorkerInfo(worker_id="w"))
        worker.status.counters.generated_tokens = self.tokens
        return fleet_pb2.FleetSnapshot(workers=[worker])


@pytest.mark.parametrize("jump", [7200.0, -7200.0])
async def test_age_and_rates_are_by_a_clock_that_nobody_sets(monkeypatch: pytest.MonkeyPatch, jump: float) -> None:
    wall, steady = [1e9], [50.0]
    clocks = SimpleNamespace(time=lambda: wall[0], monotonic=lambda: steady[0])
    monkeypatch.setattr(view, "time", clocks)
    shown = view.FleetView(Link())  # type: ignore[arg-type]
    assert shown.age > 1e6
    with shown.watched():
        await shown.poll()
        wall[0] += jump
        steady[0] += 0.5
        assert shown.age == 0.5
        await shown.poll()
    assert (shown.heard, shown.age) == (1e9 + jump, 0.0)
    assert shown.rates == {"w": 200.0}


def record(began: float, seconds: float, first: float | None, tokens: int) -> pb.RequestRecord:
    made = pb.RequestRecord(began_unix_seconds=began, seconds=seconds, completion_tokens=tokens)
    if first is not None:
        made.first_token_seconds = first
    return made


def test_times_are_of_requests_that_ended_lately_and_said_something() -> None:
    ended = [
        record(1000, 3.0, 1.0, 5),
        record(1000, 1.0, None, 0),
        record(1000, 2.0, 2.0, 1),
        record(900 - RECENT_SECONDS, 9.0, 9.0, 2),
    ]
    found = latencies(ended, 1004)
    assert (found["first_p50"], found["token_p50"], found["token_p99"]) == (1.5, 0.5, 0.5)


def test_what_a_vendor_withholds_is_unknown() -> None:
    state = pb.DeviceState(memory_total_bytes=100, power_watts=0.0)
    assert readings(state) == {"use": None, "memory": None, "celsius": None, "watts": 0.0}
    state.memory_used_bytes = 25
    assert readings(state)["memory"] == 0.25


def test_health_is_kept_where_it_changes() -> None:
    history = DeviceHistory()
    for at in range(MAX_CHANGES + 10):
        reason = "hot" if at % 2 else ""
        history.add(float(at), pb.DeviceState(health=pb.DEVICE_HEALTH_UNHEALTHY, reason=reason))
        history.add(float(at), pb.DeviceState(health=pb.DEVICE_HEALTH_UNHEALTHY, reason=reason))
    assert len(history.changes) == MAX_CHANGES
    assert {each.reason for each in history.changes} == {"", "hot"}


def test_words_of_newer_versions_are_unknown() -> None:
    assert [health_word(value) for value in (0, 1, 2, 3, 99)] == [
        "unknown",
        "healthy",
        "unhealthy",
        "unknown",
        "unknown",
    ]
    assert [state_word(value) for value in (0, 3, 6, 99)] == ["unknown", "ready", "lost", "unknown"]

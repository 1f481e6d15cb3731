"""The gateway's books: every way out of a request, objectives, times between tokens, the ledger."""

import asyncio
import time
from collections.abc import Callable
from contextlib import nullcontext

import pytest

from polyfleet.gateway.api import Call
from polyfleet.gateway.config import Objectives
from polyfleet.gateway.errors import (
    FailedPrecondition,
    Internal,
    InvalidArgument,
    NotFound,
    Unavailable,
)
from polyfleet.gateway.ledger import Ledger, LedgerError, Outcome
from polyfleet.gateway.metrics import Metrics
from polyfleet.gateway.request.accounts import Accounts
from polyfleet.gateway.request.token_times import TokenTimes
from polyfleet.gateway.tenants.quotas import Quotas
from polyfleet.process.keys import Tenant


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(f"polyfleet_{name}", labels)


def test_a_record_writes_down_every_way_out() -> None:
    ledger, metrics = Ledger(), Metrics()
    accounts = Accounts(ledger, metrics, 10)
    for error in (None, Unavailable("x"), GeneratorExit(), asyncio.CancelledError(), InvalidArgument("x")):
        with nullcontext() if error is None else pytest.raises(type(error)), accounts.open("r", Call("Generate")):
            if error is not None:
                raise error
    with pytest.raises(Internal, match="its log says why under r-2"), accounts.open("r-2", Call("Generate")):
        raise KeyError("a fault")
    ledger.check()
    assert (ledger.admitted, ledger.finished, ledger.failed, ledger.cancelled) == (6, 1, 3, 2)
    for code, count in {"OK": 1, "UNAVAILABLE": 1, "CANCELLED": 2, "INVALID_ARGUMENT": 1, "INTERNAL": 1}.items():
        labels = {"model": "", "method": "Generate", "code": code}
        assert metrics.registry.get_sample_value("polyfleet_requests_total", labels) == count


def test_what_is_written_down_later_is_as_it_was_at_the_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now, later = [100.0], list[Callable[[], None]]()
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    ledger, metrics, quotas = Ledger(), Metrics(), Quotas(lambda: {"t": Tenant("t", max_concurrent=1)})
    accounts = Accounts(ledger, metrics, 10, quotas=quotas, behind=later.append)
    with caplog.at_level("INFO"), accounts.open("r", Call("Generate", tenant="t")) as record:
        record.name_model("m")
        record.claim()
        now[0] = 103.0
    ledger.check()  # who may begin next does not wait for what is written down
    assert (ledger.running, value(metrics, "requests_inflight", model="m"), quotas.demands()) == (0, 0, {"t": 0})
    assert value(metrics, "request_duration_seconds_sum", model="m") == 0
    assert not caplog.records
    now[0] = 200.0
    with caplog.at_level("INFO"):
        later[0]()
    assert len(later) == 1
    assert value(metrics, "request_duration_seconds_sum", model="m") == 3
    assert value(metrics, "requests_total", model="m", method="Generate", code="OK") == 1
    assert [vars(each)["seconds"] for each in caplog.records] == [3.0]


def test_requests_are_judged_by_the_objectives(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    accounts = Accounts(
        Ledger(), metrics := Metrics(), 10, objectives=Objectives(time_to_first_token=2, time_per_output_token=0.5)
    )

    def fail(error: BaseException) -> None:
        with accounts.open("r", Call("Generate", "team-b")) as record:
            record.name_model("m")
            raise error

    def answer(first: float, per_token: float) -> None:
        with accounts.open("r", Call("Generate", "team-a")) as record:
            record.name_model("m")
            record.placed("w-1", 0.0)
            record.prompt(5, 0)
            for seconds, choices in ((first, (0, 1)), (per_token, (0,))):
                now[0] += seconds
                for choice in choices:
                    record.times(choice).arrived(1)
                    record.generated(1)
            now[0] += 100  # in which a client reads

    for times in ((2, 0.5), (0, 0), (2.5, 0), (0, 0.75)):
        answer(*times)
    with accounts.open("r", Call("Tokenize")) as record:  # no worker takes part
        record.name_model("m")
    faults = Unavailable("x"), FailedPrecondition("x")
    for error in (*faults, InvalidArgument("x"), NotFound("x"), asyncio.CancelledError()):  # these are the caller's own
        with pytest.raises(type(error)):
            fail(error)
    for result in ("good", "slow", "failed"):
        assert value(metrics, "slo_requests_total", model="m", result=result) == 2
    assert value(metrics, "slo_objective_seconds", objective="time_to_first_token") == 2
    assert value(metrics, "slo_objective_seconds", objective="time_per_output_token") == 0.5
    assert value(metrics, "key_requests_total", key_id="team-a", code="OK") == 4
    assert value(metrics, "key_requests_total", key_id="team-b", code="CANCELLED") == 1
    assert value(metrics, "key_prompt_tokens_total", key_id="team-a") == 20
    assert value(metrics, "key_generation_tokens_total", key_id="team-a") == 12


def test_times_are_those_of_each_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two choices side by side are not one that is twice as fast, and the first token of either is the first."""
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    metrics = Metrics()
    with Accounts(Ledger(), metrics, 1000).open("r", Call("Generate")) as record:
        record.name_model("m")
        now[0] += 1
        for arrivals in ((0,), (1,), (0, 1), (0, 1), (0,)):
            for choice in arrivals:
                record.times(choice).arrived(1)
            now[0] += 2
        record.times(2)  # never began
        record.generated(7)
        now[0] += 500
    value = metrics.registry.get_sample_value
    assert value("polyfleet_time_to_first_token_seconds_sum", {"model": "m"}) == 1
    assert value("polyfleet_time_per_output_token_seconds_count", {"model": "m"}) == 2
    assert value("polyfleet_time_per_output_token_seconds_sum", {"model": "m"}) == pytest.approx(8 / 3 + 2)


def test_a_pause_of_the_client_is_no_time_between_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    times = TokenTimes()
    times.arrived(0)
    before = (times.first, times.per_token)
    assert before == (None, None)
    times.arrived(3)  # of which two came with the first one
    now[0] += 3
    times.arrived(1)
    assert times.first == 100
    assert times.per_token == 1.0
    times.paused()
    now[0] += 1000
    times.arrived(1)
    now[0] += 3
    times.arrived(3)
    assert times.first == 100
    assert times.per_token == 1.0


def test_leaving_at_the_deadline_is_the_deadline() -> None:
    ledger = Ledger()
    with pytest.raises(asyncio.CancelledError), Accounts(ledger, Metrics(), 10).open("r", Call("Generate", timeout=0)):
        raise asyncio.CancelledError
    assert (ledger.failed, ledger.cancelled) == (1, 0)


def test_a_ledger_that_does_not_balance_says_so() -> None:
    ledger = Ledger()
    ledger.admit()
    ledger.end(Outcome.FINISHED)
    ledger.check()
    ledger.end(Outcome.FAILED)
    with pytest.raises(LedgerError, match="does not balance"):
        ledger.check()

"""Prefill and decode apart: when it pays, by whom, and why not."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyfleet.placement.apart import Decision
from polyfleet.placement.explain import explained
from polyfleet.placement.fleet import FleetSnapshot, PlacementRequest, Revision, Role, Worker, WorkerState
from polyfleet.placement.place import Placement, place
from polyfleet.placement.policy import Policy

LONG = PlacementRequest("model", 2048, 256, key="one", output_tokens=256)
RATES = {
    **{"prefill_tokens_per_second": 40_000.0, "decode_tokens_per_second": 140.0},
    **{"fetch_tokens_per_second": 80_000.0, "import_tokens_per_second": 400_000.0},
}


def worker(name: str, role: Role = Role.BOTH, **facts: Any) -> Worker:
    """A card that serves an 8B model; 60 sequences decode there, or nothing goes on where it only computes prompts."""
    load = {"running_sequences": 0 if role is Role.PREFILL else 60, "num_blocks": 40_000, "free_blocks": 20_000}
    steps = {"step_seconds": 0.0065, "step_seconds_per_sequence": 2e-5, "step_seconds_per_token": 1e-8}
    given: dict[str, Any] = {"max_sequences": 256, "context_length": 32_768, **RATES, **load, **steps, **facts}
    return Worker(name, f"{name}:1", "model", "cuda", WorkerState.READY, role=role, **given)


def placed(*workers: Worker, request: PlacementRequest = LONG, **policy: Any) -> Placement:
    return place(request, FleetSnapshot("", 1, workers), Policy(**policy))


def decision(placement: Placement) -> Decision | None:
    return placement.apart.decision if placement.apart else None


PREFILL, DECODE = worker("prefill", Role.PREFILL), worker("decode", Role.DECODE)


def test_a_long_prompt_among_decodes_is_computed_apart() -> None:
    placement = placed(PREFILL, DECODE)
    assert placement.worker == DECODE
    assert placement.apart is not None
    assert (placement.apart.decision, placement.apart.worker) == (Decision.APART, PREFILL)
    assert placement.apart.seconds == pytest.approx(2048 / 40_000)  # on its way meanwhile
    # together it would hold up 60 sequences, for what it takes to compute it; apart for what it takes to arrive
    assert explained(placement)["prefill"] == {
        "decision": "apart",
        "worker_id": "prefill",
        "seconds": pytest.approx(placement.apart.seconds, abs=1e-4),
        "gain_seconds": pytest.approx(placement.apart.gain, abs=1e-4),
    }
    assert not any(each.dropped for each in placement.verdicts)  # either could serve the whole request


@pytest.mark.parametrize(
    ("workers", "request_", "expected"),
    [
        ([worker("one"), worker("other")], LONG, None),
        ([DECODE], LONG, Decision.NO_PREFILL),
        ([DECODE, replace(PREFILL, state=WorkerState.LOST)], LONG, Decision.NO_PREFILL),
        ([DECODE, replace(PREFILL, circuit_open=True)], LONG, Decision.NO_PREFILL),
        ([DECODE, replace(PREFILL, fingerprint="another")], replace(LONG, fingerprint=""), Decision.NO_PREFILL),
        ([PREFILL], LONG, Decision.NO_DECODE),
        ([PREFILL, DECODE], replace(LONG, bound=True), Decision.BOUND),
        ([PREFILL, DECODE], replace(LONG, prompt_tokens=255), Decision.SHORT),
        ([PREFILL, DECODE], replace(LONG, cached_tokens={"decode": 1800}), Decision.SHORT),
        ([PREFILL, replace(DECODE, running_sequences=0)], LONG, Decision.TOGETHER),
        ([PREFILL, replace(DECODE, fetch_tokens_per_second=300.0)], LONG, Decision.TOGETHER),
        ([PREFILL, replace(DECODE, import_tokens_per_second=4 * 40_000.0 - 100)], LONG, Decision.TOGETHER),
        ([PREFILL, replace(DECODE, import_tokens_per_second=1.0)], LONG, Decision.TOGETHER),
        ([replace(PREFILL, waiting_prefill_tokens=10_000_000), DECODE], LONG, Decision.TOGETHER),
        ([replace(PREFILL, prefill_tokens_per_second=10.0), DECODE], LONG, Decision.TOGETHER),
    ],
)
def test_why_together(workers: list[Worker], request_: PlacementRequest, expected: Decision | None) -> None:
    placement = placed(*workers, request=request_)
    assert decision(placement) == expected
    assert placement.worker is not None
    assert placement.apart is None or placement.apart.worker is None
    # what is not computed apart is placed as if nobody had a role
    plain = placed(*(replace(each, role=Role.BOTH) for each in workers), request=request_)
    assert (plain.worker and plain.worker.worker_id) == placement.worker.worker_id


def test_taking_a_prompt_in_may_cost_a_quarter_of_computing_it() -> None:
    """With more, two workers that do all carry more; where it is not known, a transfer is tried."""
    rates = {40_000.0 * times: times for times in (0.5, 1.0, 3.9, 4.1, 40.0)}
    found = {
        times: decision(placed(PREFILL, replace(DECODE, import_tokens_per_second=each)))
        for each, times in rates.items()
    }
    assert [times for times, each in found.items() if each is Decision.APART] == [4.1, 40.0]
    assert decision(placed(PREFILL, replace(DECODE, import_tokens_per_second=0.0))) is Decision.APART


def test_a_revision_keeps_its_requests_and_has_its_prompts_computed_by_any_of_the_same_weights() -> None:
    mine, other = Revision("talk", 2), Revision("prompts", 1)
    prefill, decode = replace(PREFILL, revision=other), replace(DECODE, revision=mine)
    given = replace(LONG, revision=mine)
    assert placed(prefill, decode, request=given).apart.worker == prefill  # type: ignore[union-attr]
    short = replace(given, prompt_tokens=100)
    assert placed(prefill, decode, request=short).worker == decode
    assert placed(prefill, decode, request=replace(short, revision=None)).worker == prefill  # nothing goes on there
    assert placed(prefill, decode, request=replace(short, revision=other)).worker == decode


def test_a_slow_decoder_has_its_prompts_computed_by_a_fast_worker_of_another_kind() -> None:
    laptop = worker("laptop", Role.DECODE, prefill_tokens_per_second=300.0, running_sequences=0)
    assert decision(placed(PREFILL, laptop)) is Decision.APART


def test_the_prefill_worker_with_the_shorter_queue_or_the_prompt_is_named() -> None:
    busy = replace(PREFILL, worker_id="busy", waiting_prefill_tokens=4_000)
    assert placed(busy, PREFILL, DECODE).apart.worker == PREFILL  # type: ignore[union-attr]
    knows = replace(LONG, cached_tokens={"busy": 2_000})
    ahead = replace(busy, waiting_prefill_tokens=100)
    assert placed(ahead, PREFILL, DECODE, request=knows).apart.worker == ahead  # type: ignore[union-attr]


def test_other_policies_look_at_no_rates_and_use_all_workers_alike() -> None:
    placement = placed(PREFILL, DECODE, policy="least-requests")
    assert (placement.worker, placement.apart) == (PREFILL, None)


def test_where_all_decoding_workers_refuse_one_for_prompts_serves() -> None:
    placement = placed(PREFILL, replace(DECODE, circuit_open=True))
    assert (placement.worker, decision(placement)) == (PREFILL, Decision.NO_DECODE)


ROLES = st.sampled_from(Role)
RATE = st.just(0.0) | st.floats(1e-30, 1e6)
WORKERS = st.builds(
    lambda role, rate, fetch, running, waiting: worker(
        "w",
        role,
        prefill_tokens_per_second=rate,
        fetch_tokens_per_second=fetch,
        running_sequences=running,
        waiting_prefill_tokens=waiting,
    ),
    ROLES,
    RATE,
    RATE,
    st.integers(0, 300),
    st.integers(0, 10**7),
)
REQUESTS = st.builds(
    lambda prompt, goal, bound: replace(LONG, prompt_tokens=prompt, first_token_seconds=goal, bound=bound),
    st.integers(1, 30_000),
    st.sampled_from([0.0, 0.1, 2.0]),
    st.booleans(),
)


@settings(deadline=None, max_examples=200)
@given(st.lists(WORKERS, max_size=5), REQUESTS)
def test_of_any_fleet(workers: list[Worker], request: PlacementRequest) -> None:
    named = [replace(each, worker_id=f"w{number}") for number, each in enumerate(workers)]
    placement = placed(*named, request=request)
    assert (placement.worker is None) == (not named)
    if placement.worker is None:
        return
    divided = any(each.role is not Role.BOTH for each in named)
    assert (placement.apart is not None) == divided
    if all(each.role is Role.PREFILL for each in named):
        assert decision(placement) is Decision.NO_DECODE
    if placement.apart and placement.apart.worker:
        assert placement.apart.worker.role is Role.PREFILL
        assert placement.worker.role is not Role.PREFILL
        assert placement.apart.gain > 0
        assert request.prompt_tokens >= 256
        assert not request.bound
    assert placed(*named, request=request).apart == placement.apart


@settings(deadline=None, max_examples=100)
@given(st.floats(1, 1e6), st.floats(1, 1e6), st.integers(0, 200), st.integers(0, 10**6))
def test_a_worse_prefill_worker_never_makes_apart_pay(rate: float, fetch: float, running: int, waiting: int) -> None:
    decode = replace(DECODE, fetch_tokens_per_second=fetch, running_sequences=running)
    prefill = replace(PREFILL, prefill_tokens_per_second=rate, waiting_prefill_tokens=waiting)
    if decision(placed(prefill, decode)) is Decision.TOGETHER:
        for worse in (
            replace(prefill, prefill_tokens_per_second=rate / 2),
            replace(prefill, waiting_prefill_tokens=2 * waiting + 1),
        ):
            assert decision(placed(worse, decode)) is Decision.TOGETHER
        slower = replace(decode, fetch_tokens_per_second=fetch / 2)
        assert decision(placed(prefill, slower)) is Decision.TOGETHER

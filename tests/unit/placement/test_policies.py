"""What a policy's rule, weights and tenants make of a fleet, and which reports are believed."""

import json
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyfleet.placement.explain import explained, told
from polyfleet.placement.fleet import FleetSnapshot, PlacementRequest, Worker, WorkerState
from polyfleet.placement.place import place
from polyfleet.placement.policy import Policy, TenantRule
from polyfleet.placement.pool import FleetIndex
from polyfleet.placement.proto import worker_from_proto
from polyfleet.v1 import fleet_pb2 as pb
from polyfleet.wire.features import LOGPROBS

FAST = Worker(
    *("w-fast", "a:1", "m", "cuda", WorkerState.READY),
    context_length=8192,
    num_blocks=1000,
    free_blocks=1000,
    max_sequences=16,
    prefill_tokens_per_second=10_000.0,
    decode_tokens_per_second=100.0,
    device_name="Fast 9000",
    deployment="d-fast",
    dtype="bfloat16",
)
SLOW = replace(
    FAST,
    worker_id="w-slow",
    accelerator="cpu",
    device_name="Slow 1",
    deployment="d-slow",
    dtype="float32",
    prefill_tokens_per_second=500.0,
    decode_tokens_per_second=5.0,
)
REQUEST = PlacementRequest("m", 640, 100, key="r", output_tokens=100)


def chosen(*workers: Worker, request: PlacementRequest = REQUEST, **policy: Any) -> str:
    worker = place(request, FleetSnapshot("e", 1, workers), Policy(**policy)).worker
    return worker.worker_id if worker else ""


def test_an_idle_slow_worker_gets_no_share_of_what_a_fast_one_finishes_sooner() -> None:
    """Not even of one-token prompts, whose first token both give at once."""
    for prompt in (1, 64, 2048):
        got = {chosen(FAST, SLOW, request=replace(REQUEST, prompt_tokens=prompt, key=f"r-{n}")) for n in range(50)}
        assert got == {"w-fast"}


def test_decode_time_is_that_of_the_batch_it_would_join() -> None:
    busy = replace(FAST, step_seconds=0.01, step_seconds_per_sequence=0.001, running_sequences=15)
    token = place(REQUEST, FleetSnapshot("e", 1, (busy,))).verdicts[0].token_seconds
    assert token == pytest.approx(0.01 + 16 * 0.001)
    context = replace(busy, step_seconds_per_token=1e-6, free_blocks=900)
    token = place(REQUEST, FleetSnapshot("e", 1, (context,))).verdicts[0].token_seconds
    assert token == pytest.approx(0.01 + 16 * 0.001 + (1600 + 640) * 1e-6)


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ({}, "w-fast"),
        ({"cost_weight": 1e6, "costs": {"cuda": 1.0}}, "w-slow"),
        ({"cost_weight": 1e6, "costs": {"cuda": 1.0, "Fast 9000": 0.0}}, "w-fast"),
        ({"energy_weight": 1.0, "joules": {"Fast 9000": 1.0}}, "w-slow"),
        ({"costs": {"cuda": 1e9}, "joules": {"cuda": 1e9}}, "w-fast"),
    ],
)
def test_cost_and_energy_count_as_they_are_weighed(policy: dict[str, Any], expected: str) -> None:
    assert chosen(FAST, SLOW, **policy) == expected


def test_a_full_cache_a_sticky_prompt_and_a_missed_objective_count_as_they_are_weighed() -> None:
    full = replace(FAST, free_blocks=100)
    twin = replace(FAST, worker_id="w-twin", decode_tokens_per_second=90.0)
    assert chosen(full, twin) == "w-fast"
    assert chosen(full, twin, kv_weight=10.0) == "w-twin"
    cached = replace(REQUEST, cached_tokens={"w-twin": 640})
    assert chosen(FAST, twin, request=cached) == "w-fast"
    assert chosen(FAST, twin, request=cached, stickiness_weight=5.0) == "w-twin"
    late = replace(FAST, waiting_prefill_tokens=50_000, num_blocks=0)  # 5 s; then fast
    soon = replace(SLOW, decode_tokens_per_second=13.0, prefill_tokens_per_second=2000.0)
    assert chosen(late, soon) == "w-fast"
    assert chosen(late, soon, request=replace(REQUEST, first_token_seconds=2.0)) == "w-slow"
    assert chosen(late, soon, request=replace(REQUEST, first_token_seconds=2.0), late_weight=0.0) == "w-fast"


@settings(max_examples=30, deadline=None)
@given(st.dictionaries(st.sampled_from(["cuda", "cpu", "Slow 1"]), st.floats(0, 1e9)), st.integers(1, 4096))
def test_nobody_pays_for_what_nobody_weighs(costs: dict[str, float], prompt: int) -> None:
    request, fleet = replace(REQUEST, prompt_tokens=prompt), FleetSnapshot("e", 1, (FAST, SLOW))
    plain = place(request, fleet, Policy())
    assert place(request, fleet, Policy(costs=costs, joules=costs)).verdicts == plain.verdicts


def shares(policy: str, count: int = 600, **cached: int) -> Counter[str]:
    workers = (FAST, SLOW, replace(SLOW, worker_id="w-busy", running_sequences=8, waiting_sequences=1))
    named = {f"w-{name}": tokens for name, tokens in cached.items()}
    requests = (replace(REQUEST, key=f"r-{n}", serial=n, cached_tokens=named) for n in range(count))
    return Counter(chosen(*workers, request=each, policy=policy) for each in requests)


def test_the_simpler_rules() -> None:
    assert shares("round-robin") == {"w-fast": 200, "w-slow": 200, "w-busy": 200}
    assert all(140 < count < 260 for count in shares("random").values())
    least = shares("least-requests")
    assert (least["w-busy"], 240 < least["w-fast"] < 360) == (0, True)
    two = shares("power-of-two")
    assert (two["w-busy"], 240 < two["w-fast"] < 360) == (0, True)
    assert shares("prefix-queue", busy=640) == {"w-busy": 600}  # 3 for the whole prompt, the others 2 for idleness
    assert shares("prefix-queue", busy=320)["w-busy"] == 0


def test_a_worker_without_rates_is_no_favourite_of_rules_that_look_at_none() -> None:
    new = replace(SLOW, worker_id="w-new", prefill_tokens_per_second=0.0, decode_tokens_per_second=0.0)
    got = Counter(chosen(FAST, new, request=replace(REQUEST, key=f"r-{n}"), policy="random") for n in range(400))
    assert 140 < got["w-new"] < 260


def test_a_tenant_gets_the_workers_that_its_rule_allows_and_others_all() -> None:
    rules = {"lab": TenantRule(accelerators=("cpu",)), "*": TenantRule(deployments=("d-fast",))}
    assert chosen(FAST, SLOW, request=replace(REQUEST, tenant="lab"), tenants=rules) == "w-slow"
    assert chosen(FAST, SLOW, request=replace(REQUEST, tenant="else"), tenants=rules) == "w-fast"
    assert chosen(SLOW, request=replace(REQUEST, tenant="else"), tenants=rules) == ""
    assert chosen(FAST, request=replace(REQUEST, tenant="a"), tenants={"a": TenantRule(dtypes=("float32",))}) == ""
    assert chosen(FAST, SLOW, request=replace(REQUEST, tenant="other"), tenants={"lab": rules["lab"]}) == "w-fast"
    placement = place(replace(REQUEST, tenant="lab"), FleetSnapshot("e", 1, (FAST,)), Policy(tenants=rules))
    assert placement.verdicts[0].dropped == "its accelerator cuda is not among the tenant's: cpu"


def test_a_worker_without_the_feature_is_dropped() -> None:
    plain = replace(FAST, features=frozenset())
    wanted = replace(REQUEST, features=frozenset({LOGPROBS}))
    assert chosen(plain, SLOW, request=wanted) == "w-slow"
    assert place(wanted, FleetSnapshot("e", 1, (plain,))).verdicts[0].dropped == "has no logprobs"
    assert chosen(plain, SLOW) == "w-fast"


@pytest.mark.parametrize(
    ("status", "problem"),
    [
        ({"running_sequences": 2**32 - 1}, "running sequences: 4294967295"),
        ({"waiting_prefill_tokens": 2**32 - 5}, "waiting tokens: 4294967291"),
        ({"free_blocks": 1001}, "free blocks: 1001 of 1000"),
        ({"prefill_tokens_per_second": -1.0}, "prefill rate: -1"),
        ({"decode_tokens_per_second": float("nan")}, "decode rate: nan"),
        ({"decode_step_seconds": float("inf")}, "step time: inf"),
    ],
)
def test_a_worker_that_reports_nonsense_gets_nothing_and_the_rest_goes_on(
    status: dict[str, float], problem: str
) -> None:
    model = pb.ModelInfo(name="m", context_length=8192, block_size=16, num_blocks=1000, max_sequences=16)
    odd = worker_from_proto(
        pb.WorkerInfo(worker_id="w-odd", model=model),
        pb.WorkerStatus(state=pb.WORKER_STATE_READY, **status),  # type: ignore[arg-type]
    )
    placement = place(REQUEST, FleetSnapshot("e", 1, (odd, SLOW)))
    assert placement.worker == SLOW
    assert placement.verdicts[0].dropped == f"reports nonsense: {problem}"
    sound = worker_from_proto(pb.WorkerInfo(model=model), pb.WorkerStatus(state=pb.WORKER_STATE_READY, free_blocks=9))
    assert not sound.nonsense


def test_a_promise_is_good_for_a_few_sequences_only() -> None:
    """A worker of a kind that nobody knows is tried; what it would get beyond, it gets as if it were the slowest."""
    new = replace(FAST, worker_id="w-new", accelerator="xpu", prefill_tokens_per_second=0, decode_tokens_per_second=0)
    fleet = (SLOW, replace(SLOW, worker_id="w-slower", prefill_tokens_per_second=50.0, decode_tokens_per_second=1.0))
    assert chosen(*fleet, replace(new, running_sequences=3)) == "w-new"
    assert chosen(*fleet, replace(new, running_sequences=4)) == "w-slow"


workers = st.builds(
    replace,
    st.sampled_from([FAST, SLOW]),
    worker_id=st.sampled_from([f"w-{n}" for n in range(5)]),
    model=st.sampled_from(["m", "m", "m", "other"]),
    fingerprint=st.sampled_from(["", "", "f"]),
    state=st.sampled_from([WorkerState.READY, WorkerState.READY, WorkerState.READY, WorkerState.LOST]),
    running_sequences=st.integers(0, 20),
    free_blocks=st.integers(0, 1000),
    prefill_tokens_per_second=st.sampled_from([0.0, 50.0, 1000.0]),
    circuit_open=st.sampled_from([False, False, True]),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(workers, max_size=25), st.sampled_from([None, "", "f"]))
def test_an_index_that_is_kept_up_to_date_places_as_a_new_one(reports: list[Worker], fingerprint: str | None) -> None:
    kept, last = FleetIndex(Policy()), dict[str, Worker]()
    request = replace(REQUEST, fingerprint=fingerprint)
    for number, worker in enumerate(reports):
        if number % 5 == 4:
            kept.drop(worker.worker_id)
            last.pop(worker.worker_id, None)
        else:
            kept.put(worker)
            last[worker.worker_id] = worker
        mine, fresh = place(request, kept), place(request, FleetSnapshot("e", 1, tuple(last.values())))
        assert mine.worker == fresh.worker
        assert {each.worker_id: each for each in mine.verdicts} == {each.worker_id: each for each in fresh.verdicts}


@pytest.mark.parametrize(
    ("name", "times", "shown"), [("w", 1, 16), ("w", 3, 8), ("w" * 120, 3, 4), ("w" * 128 + '"' * 2000, 3, 0)]
)
def test_what_is_told_of_placements_fits_a_header(name: str, times: int, shown: int) -> None:
    workers = [replace(FAST, worker_id=f"{name}-{n}") for n in range(100)]
    workers += [replace(FAST, worker_id=f"{name}-d{n}", model="other") for n in range(30)]
    found = explained(place(REQUEST, FleetSnapshot("e", 1, tuple(workers))))
    text = told([found] * times)
    last = json.loads(text)[-1]
    assert len(text) <= 6_000
    assert (len(last["workers"]), len(last["dropped"]), last["more"]) == (shown, shown, 130 - 2 * shown)
    assert last["worker_id"] == found["worker_id"]


@given(st.sampled_from([1e-300, 1e9]), st.sampled_from([0.0, 1e9]), st.sampled_from([0.0, 86_400.0]))
def test_no_weights_keep_a_request_from_the_only_worker(rate: float, weight: float, blur: float) -> None:
    policy: dict[str, Any] = {"unknown_prefill_tokens_per_second": rate, "unknown_decode_tokens_per_second": rate}
    new = replace(FAST, prefill_tokens_per_second=0.0, decode_tokens_per_second=0.0, running_sequences=16)
    assert chosen(new, crowd_weight=weight, late_weight=weight, tie_ratio=blur, **policy) == "w-fast"


@pytest.mark.parametrize(("running", "waiting", "promised"), [(1, 0, True), (1, 1, False), (0, 2, False)])
def test_a_promise_is_believed_until_so_many_sequences_risk_it(running: int, waiting: int, promised: bool) -> None:
    new = replace(SLOW, worker_id="w-new", accelerator="xpu", prefill_tokens_per_second=0.0)
    new = replace(new, running_sequences=running, waiting_sequences=waiting)
    policy = Policy(unknown_sequences=2, unknown_prefill_tokens_per_second=1e9)
    note = place(REQUEST, FleetSnapshot("e", 1, (FAST, SLOW, new)), policy).verdicts[2]
    assert (note.expected_wait_seconds < 0.01) == promised

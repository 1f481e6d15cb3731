"""place(): what is dropped and why, and who wins."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest

from polyfleet.placement.filters import outvoted, prevailing_fingerprint
from polyfleet.placement.fleet import FleetSnapshot, PlacementRequest, Worker, WorkerState
from polyfleet.placement.place import place
from polyfleet.placement.policy import Policy

READY = Worker(
    "w-a",
    "127.0.0.1:1",
    "m",
    "cpu",
    WorkerState.READY,
    context_length=8192,
    block_size=16,
    num_blocks=1000,
    free_blocks=1000,
    max_sequences=16,
    prefill_tokens_per_second=1000.0,
    decode_tokens_per_second=50.0,
)
REQUEST = PlacementRequest("m", prompt_tokens=100, max_tokens=50, key="r-1")


def fleet(*workers: Worker) -> FleetSnapshot:
    return FleetSnapshot("epoch", 1, workers)


def expected_wait(request: PlacementRequest, worker: Worker, policy: Policy) -> float:
    return place(request, fleet(worker), policy).verdicts[0].expected_wait_seconds


@pytest.mark.parametrize(
    ("worker", "reason"),
    [
        (replace(READY, model="other"), "serves other"),
        (replace(READY, model=""), "serves no model"),
        (replace(READY, state=WorkerState.STARTING), "starting"),
        (replace(READY, state=WorkerState.LOADING), "loading its model"),
        (replace(READY, state=WorkerState.DRAINING), "draining"),
        (replace(READY, state=WorkerState.UNHEALTHY), "unhealthy"),
        (replace(READY, state=WorkerState.LOST), "lost"),
        (replace(READY, context_length=149), "its context of 149 tokens is shorter than 150"),
        (replace(READY, num_blocks=9), "its KV cache of 144 tokens is smaller than 150"),
    ],
)
def test_a_worker_that_cannot_serve_is_dropped_with_the_reason(worker: Worker, reason: str) -> None:
    placement = place(REQUEST, fleet(worker))
    assert placement.worker is None
    assert [(v.worker_id, v.dropped) for v in placement.verdicts] == [("w-a", reason)]


def test_a_request_stays_with_its_fingerprint() -> None:
    one, other, old = (replace(READY, worker_id=f"w-{each}", fingerprint=each) for each in ("f1", "f2", ""))
    for wanted, expected in (("f1", one), ("f2", other), ("", old)):
        placement = place(replace(REQUEST, fingerprint=wanted), fleet(one, other, old))
        assert placement.worker == expected
        dropped = [verdict.dropped for verdict in placement.verdicts if verdict.dropped]
        assert dropped == ["has other weights or another tokenizer of this name"] * 2
    assert place(replace(REQUEST, fingerprint="f3"), fleet(one, other, old)).worker is None
    assert place(REQUEST, fleet(other)).worker == other


@pytest.mark.parametrize(
    ("fingerprints", "expected"),
    [("", None), ("b", "b"), ("bba", "b"), ("baab", "a"), ("cba", "a"), (["", "", "a"], "")],
)
def test_most_workers_decide_and_among_equals_the_least(fingerprints: Sequence[str], expected: str | None) -> None:
    assert prevailing_fingerprint(replace(READY, fingerprint=each) for each in fingerprints) == expected


def test_the_outvoted_are_ready_ones_of_the_same_model() -> None:
    workers = [
        replace(READY, worker_id="w-1", fingerprint="a"),
        replace(READY, worker_id="w-2", fingerprint="a"),
        replace(READY, worker_id="w-3", fingerprint="b"),
        replace(READY, worker_id="w-4", fingerprint="b", state=WorkerState.LOADING),
        replace(READY, worker_id="w-5", fingerprint="c", model="other"),
    ]
    assert outvoted(workers) == {"w-3"}
    assert outvoted(workers[2:]) == set()


def test_a_worker_that_failed_the_request_is_dropped() -> None:
    other = replace(READY, worker_id="w-b")
    placement = place(replace(REQUEST, excluded=frozenset({"w-a"})), fleet(READY, other))
    assert placement.worker == other
    assert placement.verdicts[0].dropped == "failed this request before"


def test_a_request_that_just_fits_is_placed() -> None:
    assert place(REQUEST, fleet(replace(READY, context_length=150, num_blocks=10, free_blocks=10))).worker is not None


def test_an_empty_fleet_places_nothing() -> None:
    placement = place(REQUEST, fleet())
    assert placement.worker is None
    assert placement.verdicts == ()


def test_the_wait_is_queue_and_own_prompt_over_the_rate() -> None:
    worker = replace(READY, waiting_prefill_tokens=400)
    assert expected_wait(REQUEST, worker, Policy()) == pytest.approx((400 + 100) / 1000)


def test_cached_tokens_of_that_worker_shorten_the_wait_but_one_token_is_computed() -> None:
    cached = replace(REQUEST, cached_tokens={"w-a": 64, "w-b": 100})
    assert expected_wait(cached, READY, Policy()) == pytest.approx(36 / 1000)
    assert expected_wait(cached, replace(READY, worker_id="w-b"), Policy()) == pytest.approx(1 / 1000)


def test_full_slots_cost_the_time_until_one_is_free() -> None:
    # 16 of 16 run and 3 wait: four sequences must end; 16 end every 128 / 50 seconds.
    worker = replace(READY, running_sequences=16, waiting_sequences=3)
    assert expected_wait(REQUEST, worker, Policy()) == pytest.approx(0.1 + 4 / 16 * 128 / 50)


def test_missing_blocks_cost_the_time_until_they_are_free() -> None:
    # 101 tokens want 7 blocks, 2 are free: 5 of 1000 blocks must come back.
    worker = replace(READY, running_sequences=3, free_blocks=2)
    assert expected_wait(REQUEST, worker, Policy()) == pytest.approx(0.1 + 5 / 1000 * 128 / 50)


def test_a_slow_worker_gets_work_only_once_the_fast_one_waits_longer() -> None:
    slow = replace(READY, worker_id="w-slow", prefill_tokens_per_second=50.0)
    assert place(REQUEST, fleet(slow, READY)).worker == READY
    busy = replace(READY, waiting_prefill_tokens=3000)
    assert place(REQUEST, fleet(slow, busy)).worker == slow


def test_the_policy_says_what_ties_and_what_is_expected_of_the_unknown() -> None:
    slow = replace(READY, worker_id="w-slow", prefill_tokens_per_second=50.0)
    begun = replace(READY, running_sequences=4)
    assert place(REQUEST, fleet(slow, begun)).worker == begun
    assert place(REQUEST, fleet(slow, begun), Policy(tie_seconds=10.0)).worker == slow
    half = replace(READY, worker_id="w-half", prefill_tokens_per_second=900.0)
    assert place(REQUEST, fleet(half, begun), Policy(tie_ratio=0.0, tie_seconds=0.0, crowd_weight=0)).worker == begun
    assert place(REQUEST, fleet(half, begun), Policy(tie_ratio=0.5, tie_seconds=0.0, crowd_weight=0)).worker == half
    new = replace(READY, prefill_tokens_per_second=0.0, decode_tokens_per_second=0.0, running_sequences=16)
    policy = Policy(unknown_prefill_tokens_per_second=10.0, unknown_decode_tokens_per_second=4.0, remaining_tokens=64.0)
    assert expected_wait(REQUEST, new, policy) == pytest.approx(100 / 10 + 1 / 16 * 64 / 4)


def test_a_worker_of_unknown_rate_is_tried() -> None:
    new = replace(READY, worker_id="w-new", prefill_tokens_per_second=0.0, decode_tokens_per_second=0.0)
    assert place(REQUEST, fleet(READY, new)).worker == new


def shares(workers: list[Worker], count: int, request: PlacementRequest = REQUEST) -> list[int]:
    """How many of `count` requests at once each gets, where each one placed counts in the next one's picture."""
    now = {each.worker_id: each for each in workers}
    for index in range(count):
        chosen = place(replace(request, key=f"r-{index}"), fleet(*now.values())).worker
        assert chosen is not None
        now[chosen.worker_id] = replace(
            chosen,
            waiting_sequences=chosen.waiting_sequences + 1,
            waiting_prefill_tokens=chosen.waiting_prefill_tokens + request.prompt_tokens,
        )
    return [now[each.worker_id].waiting_sequences - each.waiting_sequences for each in workers]


NEW = replace(READY, worker_id="w-new", prefill_tokens_per_second=0.0, decode_tokens_per_second=0.0)
OTHER = replace(READY, worker_id="w-other")


@pytest.mark.parametrize("prompt_tokens", [1, 10, 100, 1000])
@pytest.mark.parametrize(
    "workers",
    [
        [READY, OTHER],
        [READY, NEW],
        [replace(NEW, worker_id="w-newer"), NEW],
        [READY, replace(OTHER, prefill_tokens_per_second=1200.0)],
    ],
    ids=["known", "one new", "both new", "rates of a like kind"],
)
def test_a_burst_is_shared_by_idle_workers(workers: list[Worker], prompt_tokens: int) -> None:
    """A worker that has not served yet gets no more for its promise; short prompts count as well as long ones."""
    assert max(shares(workers, 8, replace(REQUEST, prompt_tokens=prompt_tokens))) <= 5


def test_running_sequences_count_among_workers_that_wait_as_little() -> None:
    busy = replace(READY, running_sequences=8)
    assert shares([busy, OTHER], 5, replace(REQUEST, prompt_tokens=1)) == [0, 5]


def test_a_small_worker_is_not_filled_before_a_large_one() -> None:
    small, large = (replace(READY, worker_id=f"w-{n}", max_sequences=n, prefill_tokens_per_second=1e6) for n in (4, 64))
    got = shares([small, large], 34, replace(REQUEST, prompt_tokens=1))
    assert got[0] in (1, 2, 3)  # of two that are as much taken, chance decides


def test_a_new_worker_of_another_accelerator_is_promising() -> None:
    """What a CPU does says nothing about a GPU."""
    gpu = replace(NEW, accelerator="cuda")
    assert place(REQUEST, fleet(READY, gpu)).verdicts[1].expected_wait_seconds == pytest.approx(100 / 10_000)
    assert place(REQUEST, fleet(READY, NEW)).verdicts[1].expected_wait_seconds == pytest.approx(100 / 1000)


def test_a_worker_with_an_open_circuit_is_spared() -> None:
    placement = place(REQUEST, fleet(replace(READY, circuit_open=True), OTHER))
    assert placement.worker == OTHER
    assert placement.verdicts[0].dropped == "refused or lost all its last sequences"


def test_an_open_circuit_is_better_than_nobody() -> None:
    """It may be the requests' fault; a lone worker that is spared would serve nobody at all."""
    spared, too_small = replace(READY, circuit_open=True), replace(OTHER, context_length=10)
    assert place(REQUEST, fleet(spared, too_small)).worker == spared
    assert place(REQUEST, fleet(spared, replace(spared, worker_id="w-b"))).worker is not None


def test_equal_workers_share_the_requests() -> None:
    workers = [replace(READY, worker_id=f"w-{i}") for i in range(4)]
    placements = (place(replace(REQUEST, key=f"r-{i}"), fleet(*workers)).worker for i in range(4000))
    shares = Counter(worker.worker_id for worker in placements if worker)
    # A fair split is 1000 each with a standard deviation of 27; five of them on either side.
    assert all(860 < shares[worker.worker_id] < 1140 for worker in workers)


def test_nearly_equal_workers_share_too_and_their_order_does_not_matter() -> None:
    a, b = READY, replace(READY, worker_id="w-b", prefill_tokens_per_second=1003.0)
    winners = set()
    for i in range(40):
        request = replace(REQUEST, key=f"r-{i}")
        winner = place(request, fleet(a, b)).worker
        assert winner == place(request, fleet(b, a)).worker
        winners.add(winner)
    assert winners == {a, b}

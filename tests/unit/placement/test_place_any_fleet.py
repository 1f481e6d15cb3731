"""place(): the properties that hold for every fleet."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from polyfleet.placement.fleet import FleetSnapshot, PlacementRequest, Worker, WorkerState
from polyfleet.placement.place import LATE_MARGIN, late_by, place
from polyfleet.placement.policy import Policy
from polyfleet.placement.pool import FleetIndex


def fleet(*workers: Worker) -> FleetSnapshot:
    return FleetSnapshot("epoch", 1, workers)


rates = st.sampled_from([0.0, 40.0, 1000.0, 1050.0, 60_000.0])


workers_of_any_kind = st.builds(
    Worker,
    worker_id=st.uuids().map(str),
    address=st.just("127.0.0.1:1"),
    model=st.sampled_from(["m", "m", "m", "other"]),
    accelerator=st.just("cpu"),
    state=st.sampled_from([WorkerState.READY, WorkerState.READY, *WorkerState]),
    context_length=st.sampled_from([64, 2048, 8192]),
    block_size=st.sampled_from([1, 16, 128]),
    num_blocks=st.sampled_from([0, 4, 64, 4096]),
    free_blocks=st.integers(0, 64),
    max_sequences=st.integers(0, 8),
    running_sequences=st.integers(0, 10),
    waiting_sequences=st.integers(0, 10),
    waiting_prefill_tokens=st.integers(0, 5000),
    prefill_tokens_per_second=rates,
    decode_tokens_per_second=rates,
)


fleets = st.lists(workers_of_any_kind, max_size=6, unique_by=lambda w: w.worker_id)


requests = st.builds(
    PlacementRequest,
    model=st.just("m"),
    prompt_tokens=st.integers(1, 3000),
    max_tokens=st.integers(1, 500),
    key=st.text(max_size=4),
)


@given(requests, fleets)
def test_only_a_worker_that_can_serve_is_chosen_and_each_has_a_verdict(
    request: PlacementRequest, workers: list[Worker]
) -> None:
    placement = place(request, fleet(*workers))
    assert [v.worker_id for v in placement.verdicts] == [w.worker_id for w in workers]
    kept = [v for v in placement.verdicts if not v.dropped]
    assert (placement.worker is None) == (not kept)
    if placement.worker:
        assert placement.worker.worker_id in {v.worker_id for v in kept}
        assert placement.worker.state is WorkerState.READY
        assert placement.worker.model == request.model
        assert placement.worker.context_length >= request.prompt_tokens + request.max_tokens
    assert all(v.expected_wait_seconds > 0 for v in kept)


@given(requests, fleets)
def test_the_same_arguments_give_the_same_placement(request: PlacementRequest, workers: list[Worker]) -> None:
    assert place(request, fleet(*workers)) == place(request, fleet(*workers))


@given(requests, fleets, st.sampled_from([0.0, 0.02, 0.9, 5.0]), st.sampled_from([0.0, 1.0, 50.0]), st.data())
def test_the_one_with_the_least_score_is_chosen_whatever_was_not_looked_at(
    request: PlacementRequest, workers: list[Worker], blur: float, stickiness: float, data: st.DataObject
) -> None:
    """Reasons are worked out in full, a placement is not."""
    lengths = st.sampled_from([0, 640, 3000]).map(lambda tokens: min(tokens, request.prompt_tokens))
    cached = {worker.worker_id: data.draw(lengths) for worker in workers}
    policy = Policy(tie_ratio=blur, stickiness_weight=stickiness)
    placement = place(replace(request, cached_tokens=cached), fleet(*workers), policy)
    scores = {each.worker_id: each.score for each in placement.verdicts if not each.dropped}
    assert (placement.worker.worker_id if placement.worker else None) == min(
        scores, key=lambda each: (scores[each], each), default=None
    )


@given(
    requests,
    fleets.filter(bool),
    st.data(),
    st.integers(0, 20),
    st.integers(0, 20),
    st.integers(0, 3000),
    st.integers(0, 64),
)
def test_more_load_never_makes_a_worker_win(
    request: PlacementRequest,
    workers: list[Worker],
    data: st.DataObject,
    running: int,
    waiting: int,
    tokens: int,
    blocks: int,
) -> None:
    index = data.draw(st.integers(0, len(workers) - 1))
    before = workers[index]
    after = replace(
        before,
        running_sequences=before.running_sequences + running,
        waiting_sequences=before.waiting_sequences + waiting,
        waiting_prefill_tokens=before.waiting_prefill_tokens + tokens,
        free_blocks=max(0, before.free_blocks - blocks),
    )
    verdicts = [
        place(request, fleet(*workers[:index], each, *workers[index + 1 :])).verdicts for each in (before, after)
    ]
    (less, more) = (each[index] for each in verdicts)
    if not less.dropped:
        assert more.expected_wait_seconds >= less.expected_wait_seconds
        assert more.score >= less.score
    loaded = [*workers[:index], after, *workers[index + 1 :]]
    if place(request, fleet(*loaded)).worker == after:
        assert place(request, fleet(*workers)).worker == before


@given(requests, fleets, st.floats(-1.0, 300.0))
def test_it_is_late_by_what_the_first_worker_to_answer_takes_too_long(
    request: PlacementRequest, workers: list[Worker], seconds: float
) -> None:
    placement = place(request, fleet(*workers))
    late = late_by(placement, seconds)
    first = min((v.expected_wait_seconds for v in placement.verdicts if not v.dropped), default=0.0)
    assert late == 0 or late == LATE_MARGIN * first - seconds > 0
    if (there := placement.worker) is None:
        assert late == 0
        return
    busy = there.waiting_prefill_tokens > 0 or there.running_sequences >= there.max_sequences
    (alone,) = place(request, fleet(there)).verdicts
    within = [LATE_MARGIN * each - seconds > 0 for each in (first, alone.expected_wait_seconds)]
    assert (late > 0) == (busy and all(within))


@given(requests, fleets, fleets)
def test_a_kept_index_places_as_a_new_one(
    request: PlacementRequest, workers: list[Worker], changed: list[Worker]
) -> None:
    index = FleetIndex(Policy(), workers)
    place(request, index)
    for each in changed:
        index.put(each)
    for before, after in zip(workers, changed, strict=False):
        index.put(replace(after, worker_id=before.worker_id))
    assert place(request, index).verdicts == place(request, FleetIndex(Policy(), index.workers)).verdicts

"""Random traffic: everything balances after every step, every end is right, and company changes no token."""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.batching import Outcomes, make_batcher, run_all
from tests.support.fake_executor import VOCABULARY, FakeExecutor, expected_tokens, pooled
from tests.support.guessing import Guesser
from tests.support.masking import packed

from polyfleet.engine.batching.batcher import Batcher
from polyfleet.engine.executor import FAULTS, Fault
from polyfleet.engine.speculation.speculation import Speculator
from polyfleet.sampling.arrays import Bools, Int32s
from polyfleet.wire.answers import FinishReason
from polyfleet.wire.requests import Pooling, SequenceRequest
from polyfleet.wire.sampling import SamplingParams

NUM_REQUESTS = 2000
NUM_DRAFTED = 200
CONTEXT = 100
ENDS = frozenset({3})


def random_request(rng: random.Random, number: int) -> SequenceRequest:
    """Prompts of a few common beginnings, so that prefixes are shared; now and then resumed or an embedding."""
    beginning = [rng.randrange(3)] * rng.randrange(0, 20)
    prompt = tuple(beginning + [rng.randrange(97) for _ in range(rng.randrange(1, 12))])
    pooling = rng.choice((Pooling.MEAN, Pooling.LAST)) if rng.random() < 0.1 else None
    generated = tuple(rng.randrange(97) for _ in range(rng.randrange(1, 4))) if rng.random() < 0.1 else ()
    return SequenceRequest(
        f"s{number}",
        prompt,
        sampling=SamplingParams(seed=rng.randrange(3)),
        max_tokens=rng.choice((4, 9, 30, 200)),
        generated_ids=() if pooling else generated,
        choice=rng.randrange(2),
        stop_token_ids=(rng.randrange(97),) if rng.random() < 0.3 else (),
        ignore_eos=rng.random() < 0.5,
        priority=rng.choice((0, 0, 0, 1, -1)),
        pooling=pooling,
    )


@dataclass(frozen=True)
class EveryThird:
    """Leaves every third token out."""

    shift: int

    def allowed(self, generated_ids: Sequence[int]) -> Bools:
        allowed: Bools = (np.arange(VOCABULARY) + len(generated_ids)) % 3 != self.shift
        return allowed

    ready = True

    def fill(self, generated_ids: Sequence[int], bits: Int32s) -> None:
        bits[:] = packed(self.allowed(generated_ids))


def mask_of(request: SequenceRequest) -> EveryThird | None:
    """One sequence in five is masked."""
    number = int(request.sequence_id[1:])
    return EveryThird(number % 3) if number % 5 == 0 and request.pooling is None else None


def assert_outcome(request: SequenceRequest, outcomes: Outcomes) -> None:
    outcome = outcomes[request.sequence_id]
    assert outcome.error == ""
    if request.pooling is None:
        mask = mask_of(request)
        token_ids, reason = expected_tokens(request, CONTEXT, ENDS, mask.allowed if mask else None)
        assert (outcome.token_ids, outcome.finish_reason) == (token_ids, FinishReason(reason))
        return
    total = pooled(request.pooling, request.prompt_ids)
    divisor = len(request.prompt_ids) if request.pooling is Pooling.MEAN else 1
    assert outcome.embedding == tuple(value / divisor for value in total)


@dataclass
class Traffic:
    """Feeds random requests, cancels and failures between steps."""

    batcher: Batcher
    executor: FakeExecutor
    rng: random.Random
    outcomes: Outcomes
    requests: dict[str, SequenceRequest]
    cancelled: set[str]

    def add_some(self, number: int = NUM_REQUESTS) -> None:
        most = 0 if len(self.batcher.ledger) > 60 else number - len(self.requests)
        for _ in range(min(self.rng.choice((0, 0, 1, 2, 6)), most)):
            request = random_request(self.rng, len(self.requests))
            self.requests[request.sequence_id] = request
            self.batcher.add(request, mask_of(request))

    def cancel_some(self) -> None:
        if not self.requests or self.rng.random() > 0.15:
            return
        sequence_id = f"s{self.rng.randrange(max(0, len(self.requests) - 20), len(self.requests))}"
        held = sequence_id in self.batcher.ledger
        assert self.batcher.cancel(sequence_id) is held
        if held:
            self.cancelled.add(sequence_id)
            self.batcher.check()

    def fail_some(self) -> None:
        """Memory is short now and then for a while: steps are small then, and large again later."""
        short = len(self.requests) // 100 % 5 == 4
        if self.rng.random() < 0.005:
            self.executor.failure = RuntimeError("told to fail")
            self.executor.fails_in = self.rng.choice(("launch", "draw", "collect"))
        elif self.rng.random() < 0.02:
            self.executor.fault = True
        elif short and self.rng.random() < 0.01:
            self.executor.failure = MemoryError()
            self.executor.fails_in = self.rng.choice(("launch", "draw", "collect"))
        self.executor.most_rows = 11 if short and self.rng.random() < 0.01 else 10**9


@pytest.mark.parametrize("depth", [1, pytest.param(2, marks=pytest.mark.slow), 3])
def test_two_thousand_requests_with_cancels_preemptions_and_failures_balance(depth: int) -> None:
    batcher, executor = make_batcher(
        num_blocks=40, max_sequences=8, step_tokens=24, context_length=CONTEXT, end_token_ids=ENDS, depth=depth
    )
    traffic = Traffic(batcher, executor, random.Random(7), Outcomes(), {}, set())
    while len(traffic.requests) < NUM_REQUESTS:
        traffic.add_some()
        traffic.cancel_some()
        traffic.fail_some()
        traffic.outcomes.add(batcher.step())
        batcher.check()
        assert batcher.pool.num_free <= batcher.pool.num_blocks
        running = [each.num_uncomputed for each in batcher.ledger.running if each.num_uncomputed > 1]
        assert batcher.uncomputed_tokens == sum(running) + sum(each.num_uncomputed for each in batcher.ledger.waiting)
    run_all(batcher, traffic.outcomes)
    failed = {sequence_id for sequence_id, each in traffic.outcomes.items() if each.error}
    for sequence_id, request in traffic.requests.items():
        if sequence_id not in traffic.cancelled | failed:
            assert_outcome(request, traffic.outcomes)
    ledger, counters = batcher.ledger, batcher.counters
    assert ledger.admitted == NUM_REQUESTS
    assert ledger.cancelled == len(traffic.cancelled) > 50
    assert ledger.failed == len(failed) > 20
    assert ledger.finished == NUM_REQUESTS - len(traffic.cancelled) - len(failed)
    reasons = {"told to fail", FAULTS[Fault.NOT_FINITE]}
    found = [traffic.outcomes[each].error.rpartition(": ")[2] for each in failed]
    assert reasons <= set(found) <= reasons | {"MemoryError"}
    assert found.count("MemoryError") < 5  # of rows that found no memory three times, one after the other
    assert counters.preemptions > 50
    assert counters.prefix_hit_tokens > 1000
    assert any(not each.draw and each.pooling is None for batch in executor.batches for each in batch.slices)
    assert max(batch.num_tokens for batch in executor.batches) <= 24
    sizes = Counter(len(batch.slices) for batch in executor.batches)
    assert all(sizes[size] > 20 for size in range(1, 9)), "company of every size is tried"
    generated = sum(len(each.token_ids) for each in traffic.outcomes.values())
    assert counters.generated_tokens == generated


@pytest.mark.parametrize("depth", [1, 2])
def test_random_traffic_with_random_drafts_balances(depth: int) -> None:
    drafter = Guesser(right=0.8)
    batcher, executor = make_batcher(
        num_blocks=40,
        max_sequences=8,
        step_tokens=24,
        context_length=CONTEXT,
        end_token_ids=ENDS,
        depth=depth,
        speculator=Speculator(drafter, 5),
    )
    traffic = Traffic(batcher, executor, random.Random(7), Outcomes(), {}, set())
    while len(traffic.requests) < NUM_DRAFTED:
        traffic.add_some(NUM_DRAFTED)
        traffic.cancel_some()
        traffic.fail_some()
        traffic.outcomes.add(batcher.step())
        batcher.check()
    run_all(batcher, traffic.outcomes)
    failed = {sequence_id for sequence_id, each in traffic.outcomes.items() if each.error}
    for sequence_id, request in traffic.requests.items():
        if sequence_id not in traffic.cancelled | failed:
            assert_outcome(request, traffic.outcomes)
    ledger, counters = batcher.ledger, batcher.counters
    assert ledger.finished == NUM_DRAFTED - len(traffic.cancelled) - len(failed)
    assert len(drafter.forgotten) == NUM_DRAFTED
    assert counters.drafts > counters.accepted_drafts > NUM_DRAFTED
    assert counters.preemptions > 5
    assert max(batch.num_tokens for batch in executor.batches) <= 24
    assert counters.generated_tokens == sum(len(each.token_ids) for each in traffic.outcomes.values())


REQUESTS = st.builds(
    lambda beginning, tail, max_tokens, seed, priority: (beginning, tail, max_tokens, seed, priority),
    beginning=st.integers(0, 14),
    tail=st.lists(st.integers(0, 96), min_size=1, max_size=10),
    max_tokens=st.integers(1, 25),
    seed=st.integers(0, 2),
    priority=st.integers(-1, 1),
)


def made(number: int, same: int, tail: list[int], length: int, seed: int, priority: int) -> SequenceRequest:
    """Of what REQUESTS draws."""
    prompt, sampling = (1,) * same + tuple(tail), SamplingParams(seed=seed)
    return SequenceRequest(f"s{number}", prompt, sampling, max_tokens=length, priority=priority)


@settings(max_examples=120, deadline=None)
@given(
    shapes=st.lists(REQUESTS, min_size=1, max_size=7),
    arrivals=st.lists(st.integers(0, 6), min_size=7, max_size=7),
    num_blocks=st.integers(13, 30),
    step_tokens=st.integers(6, 40),
    max_sequences=st.integers(1, 5),
    prefix_cache=st.booleans(),
    depth=st.integers(1, 3),
    right=st.sampled_from([None, 0.3, 0.9]),
    horizon=st.sampled_from((0, 0, 1, 6, 13)),
    window=st.sampled_from((0, 1, 6, 13)),
    local_blocks=st.integers(19, 26),
)
def test_company_changes_no_token(
    shapes: list[tuple[int, list[int], int, int, int]],
    arrivals: list[int],
    num_blocks: int,
    step_tokens: int,
    max_sequences: int,
    prefix_cache: bool,
    depth: int,
    right: float | None,
    horizon: int,
    window: int,
    local_blocks: int,
) -> None:
    """With a horizon a token depends on as many before it, and blocks of all others come back; with a window a second
    pool has as many tokens more."""
    window = 0 if horizon else window
    batcher, _ = make_batcher(
        speculator=None if right is None else Speculator(Guesser(right), 4),
        num_blocks=num_blocks,
        max_sequences=max_sequences,
        step_tokens=step_tokens,
        prefix_cache=prefix_cache,
        depth=depth,
        horizon=horizon,
        window=window,
        local_blocks=local_blocks if window else 0,
    )
    requests = [made(number, *shape) for number, shape in enumerate(shapes)]
    outcomes = Outcomes()
    for when in range(7):
        for request, arrival in zip(requests, arrivals, strict=False):
            if arrival == when:
                batcher.add(request)
        outcomes.add(batcher.step())
        batcher.check()
    run_all(batcher, outcomes)
    for request in requests:
        alone, _ = make_batcher(64, max_sequences=1, step_tokens=64, prefix_cache=False, horizon=horizon)
        alone.add(request)
        assert outcomes[request.sequence_id].token_ids == run_all(alone)[request.sequence_id].token_ids

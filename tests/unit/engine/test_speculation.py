"""Drafts: who gets some, and that nothing but the number of steps depends on them."""

from typing import Any

import numpy as np
import pytest
from tests.support.batching import Outcomes, assert_right, make_batcher, over, request, run_all
from tests.support.fake_executor import VOCABULARY, FakeExecutor, expected_tokens
from tests.support.guessing import Guesser

from polyfleet.engine.batching.batch import BatchLimits
from polyfleet.engine.speculation.ngrams import History, NgramDrafter
from polyfleet.engine.speculation.speculation import LEAST_CHANCE, DraftCost, Speculator
from polyfleet.engine.step.sequence import Sequence
from polyfleet.sampling.arrays import Int32s
from polyfleet.sampling.masks import allow
from polyfleet.wire.answers import FinishReason
from polyfleet.wire.requests import SequenceRequest


def test_right_drafts_bring_several_tokens_a_step_in_one_update() -> None:
    batcher, executor = make_batcher(speculator=Speculator(Sure(), 4))
    wanted = request(1, max_tokens=20)
    batcher.add(wanted)
    outcomes = run_all(batcher)
    assert_right(outcomes, wanted)
    assert len(executor.batches) == 2 + 20 // 5  # the prompt, a plain step that tells what one takes, then five a step
    assert outcomes["s1"].num_updates == len(executor.batches)
    counters = batcher.counters
    assert (counters.accepted_drafts, counters.generated_tokens) == (14, 20)
    assert counters.drafts == counters.accepted_drafts  # none behind the last token


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("max_tokens", range(1, 8))
def test_an_end_within_drafts_that_are_right_cuts_them(max_tokens: int, depth: int) -> None:
    batcher, executor = make_batcher(depth=depth, speculator=Speculator(Sure(), 4))
    long = request(2, max_tokens=30)
    token_ids, _ = expected_tokens(long, 256)
    ends = [request(1, max_tokens=max_tokens), request(2, max_tokens=30, stop_token_ids=(token_ids[max_tokens],))]
    for each in ends:
        batcher.add(each)
    outcomes = run_all(batcher)
    for each in ends:
        assert_right(outcomes, each)
    assert max(each.length for batch in executor.batches for each in batch.slices) <= 5 + 30


def test_drafts_take_no_rows_that_a_step_has_not_and_none_from_prompts() -> None:
    batcher, executor = make_batcher(step_tokens=20, max_sequences=3, speculator=Speculator(Sure(), 16))
    requests = [request(number, max_tokens=30) for number in range(3)]
    for each in requests[:2]:
        batcher.add(each)
    outcomes = Outcomes()
    for _ in range(3):
        outcomes.add(batcher.step())
    batcher.add(requests[2])
    run_all(batcher, outcomes)
    for each in requests:
        assert_right(outcomes, each)
    sizes = [batch.num_tokens for batch in executor.batches]
    assert max(sizes) <= 20
    (first,) = [batch for batch in executor.batches if any(each.start == 0 and each.slot == 2 for each in batch.slices)]
    assert [len(each.token_ids) for each in first.slices if each.slot == 2] == [5]


def test_blocks_that_wrong_drafts_took_are_given_back() -> None:
    batcher, _ = make_batcher(num_blocks=8, speculator=Speculator(Wrong(), 16))
    wanted = request(1, length=3, max_tokens=12)
    batcher.add(wanted)
    outcomes = Outcomes()
    while batcher.has_work:
        outcomes.add(batcher.step())
        batcher.check()
        for each in batcher.ledger.running:
            assert len(each.blocks) <= -(-each.num_tokens // 4)
    assert_right(outcomes, wanted)
    assert batcher.counters.drafts > 40
    assert batcher.counters.accepted_drafts == 0


def test_blocks_are_published_as_far_as_drafts_were_right() -> None:
    batcher, _ = make_batcher(speculator=Speculator(Sure(), 4))
    first = request(1, max_tokens=24)
    batcher.add(first)
    run_all(batcher)
    token_ids, _ = expected_tokens(first, 256)
    again = SequenceRequest("again", first.prompt_ids + tuple(token_ids), max_tokens=3)
    batcher.add(again)
    outcomes = run_all(batcher)
    assert_right(outcomes, again)
    assert outcomes["again"].cached_tokens == 28  # of 29 tokens the whole blocks of four


class Even:
    """Allows even tokens, and knows what it was asked with."""

    ready = True

    def __init__(self) -> None:
        self.asked: list[tuple[int, ...]] = []

    def fill(self, generated_ids: Any, bits: Int32s) -> None:
        assert all(each % 2 == 0 for each in generated_ids), "asked behind a draft that it bars"
        self.asked.append(tuple(generated_ids))
        bits[:] = 0
        allow(bits, range(0, VOCABULARY, 2))


@pytest.mark.parametrize("depth", [1, 2])
def test_masks_are_asked_for_each_draft_that_they_allow(depth: int) -> None:
    mask, wanted = Even(), request(1, max_tokens=40)
    batcher, executor = make_batcher(depth=depth, speculator=Speculator(Guesser(right=1.0), 4))
    batcher.add(wanted, mask)
    outcomes = run_all(batcher)
    even = np.arange(VOCABULARY) % 2 == 0
    token_ids, _ = expected_tokens(wanted, 256, allowed=lambda _: even)
    assert outcomes["s1"].token_ids == token_ids
    assert batcher.counters.accepted_drafts > 5
    assert all(len(each) <= len(before) + 1 for before, each in zip(mask.asked, mask.asked[1:], strict=False))
    assert len(executor.batches) < 40


def test_no_stop_before_min_tokens_within_drafts() -> None:
    wanted = request(1, max_tokens=30, stop_token_ids=tuple(range(0, VOCABULARY, 3)), min_tokens=9)
    batcher, _ = make_batcher(speculator=Speculator(Guesser(right=1.0), 4))
    plain, _ = make_batcher()
    for each in (batcher, plain):
        each.add(wanted)
    with_drafts, without = run_all(batcher)["s1"], run_all(plain)["s1"]
    assert with_drafts.token_ids == without.token_ids
    assert with_drafts.finish_reason is without.finish_reason is FinishReason.STOP
    assert len(without.token_ids) >= 9
    assert batcher.counters.accepted_drafts > 0


class Sure:
    """Drafts as many as it may, all right."""

    def __init__(self) -> None:
        self._guesser = Guesser(right=1.0)

    def chances(self, sequence: Sequence, number: int) -> list[float]:
        return [1.0] * number

    def draft(self, wanted: Any) -> Any:
        return {each: self._guesser.guess(each, number) for each, number in wanted.items()}

    def forget(self, sequence: Sequence) -> None:
        pass


class Wrong(Sure):
    """All wrong."""

    def draft(self, wanted: Any) -> Any:
        right = super().draft(wanted)
        return {each: [(draft + 1) % VOCABULARY for draft in drafts] for each, drafts in right.items()}


# Prompt lookup


def history(token_ids: list[int], least: int = 2, most: int = 4) -> History:
    made = History(least, most)
    for each in token_ids:
        made.append(each)
    made.look()
    return made


@pytest.mark.parametrize(
    ("token_ids", "length", "drafts"),
    [
        ([], 0, []),
        ([1, 2, 3], 0, []),
        ([1, 2, 3, 2], 0, []),  # one token is no match
        ([1, 2, 3, 4, 1, 2], 2, [3, 4, 1]),
        ([1, 2, 9, 5, 1, 2, 3, 1, 2], 2, [3, 1, 2]),  # the latest of equally long ones
        ([5, 1, 2, 9, 7, 1, 2, 3, 5, 1, 2], 3, [9, 7, 1]),  # the longest
        ([7, 7, 7], 2, [7, 7, 7]),  # goes on with itself
        ([1, 2, 1, 2, 1], 3, [2, 1, 2]),
    ],
)
def test_drafts_are_what_followed_the_longest_match(token_ids: list[int], length: int, drafts: list[int]) -> None:
    made = history(token_ids)
    assert made.length == length
    assert (made.guess(3) if made.place >= 0 else []) == drafts


def sequence(prompt_ids: list[int], generated_ids: list[int] | None = None) -> Sequence:
    made = SequenceRequest("s", tuple(prompt_ids), generated_ids=tuple(generated_ids or ()))
    return Sequence(made, 0, 0.0, 10_000)


def test_chances_follow_what_came_true_by_the_length_of_the_match() -> None:
    drafter, text = NgramDrafter(2, 4), list(range(50))
    copying, other = sequence(text), sequence([1, 2, 3, 1, 2])
    before = drafter.chances(other, 3)
    copying.generated_ids += [7, 8, 9, 10, 11, 12, 13, 14]
    assert drafter.chances(copying, 2)[0] > 0.9
    for _ in range(30):  # the same two tokens, and never what followed them
        other.generated_ids += [90 + len(other.generated_ids), 1, 2]
    assert drafter.chances(other, 3)[0] < 0.2 < before[0]
    drafter.forget(other)
    assert drafter.chances(sequence([5, 6, 1, 5, 6]), 1)[0] < before[0]  # all have learned of it


def test_nothing_is_drafted_where_nothing_was_there_before() -> None:
    drafter = NgramDrafter(2, 8)
    assert drafter.chances(sequence(list(range(100))), 4) == []


# What pays


def learned(plain: float, drafted: float, num_sequences: int = 1, num_drafts: int = 4) -> DraftCost:
    cost = DraftCost()
    for _ in range(60):
        cost.observe(num_sequences, 0, plain)
        cost.observe(num_sequences, num_drafts, drafted)
    return cost


def test_a_draft_must_be_as_likely_as_its_row_costs() -> None:
    assert DraftCost().least_chance(1) > 1  # nothing is known: a plain step tells
    cost = learned(plain=10.0, drafted=18.0)
    assert 0.15 < cost.least_chance(1) <= 0.2
    assert learned(10.0, 10.1).least_chance(1) == LEAST_CHANCE
    assert learned(10.0, 18.0, num_sequences=8).least_chance(8) > 1  # all eight would wait for it
    for _ in range(500):
        cost.observe(1, 0, 10.0)
    assert cost.least_chance(1) == LEAST_CHANCE  # tried again in the end
    assert learned(0.0, 0.0).least_chance(1) == LEAST_CHANCE


def test_one_hiccup_teaches_little() -> None:
    cost = learned(plain=10.0, drafted=14.0)
    before = cost.least_chance(1)
    cost.observe(1, 4, 1e6)
    cost.observe(1, 0, 1e6)
    assert cost.least_chance(1) < before + 0.1


class Timed(FakeExecutor):
    """Whose steps take as long as their rows."""

    def __init__(self, base: float, row: float) -> None:
        super().__init__()
        self.now, self._base, self._row = 0.0, base, row

    def launch(self, plan: Any) -> Any:
        self.now += self._base + self._row * plan.num_rows
        return super().launch(plan)


@pytest.mark.parametrize(("row", "right", "pays"), [(0.02, 0.9, True), (1.0, 0.9, True), (20.0, 0.5, False)])
def test_speculation_stops_where_it_does_not_pay(row: float, right: float, pays: bool) -> None:
    executor = Timed(1.0, row)
    speculator = Speculator(Honest(right), 4)
    limits = BatchLimits(16, 64, 256, vocabulary_size=VOCABULARY)
    batcher = over(executor, limits, clock=lambda: executor.now, speculator=speculator)
    wanted = request(1, max_tokens=200)
    batcher.add(wanted)
    assert_right(run_all(batcher), wanted)
    drafts = batcher.counters.drafts
    assert drafts > 150 if pays else drafts < 20


class Honest(Sure):
    """Says how often it is right."""

    def __init__(self, right: float) -> None:
        self._guesser, self._right = Guesser(right), right

    def chances(self, sequence: Sequence, number: int) -> list[float]:
        return [self._right] * number

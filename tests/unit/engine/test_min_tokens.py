"""No end before min_tokens: what would end a sequence is not drawn until then, whatever is under way."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from tests.support.batching import Outcomes, make_batcher, request, run_all
from tests.support.fake_executor import VOCABULARY, expected_tokens
from tests.support.masking import packed

from polyfleet.engine.batching.checks import check_request
from polyfleet.sampling.arrays import Bools, Int32s
from polyfleet.sampling.masks import Masks
from polyfleet.wire.answers import FinishReason
from polyfleet.wire.limits import FieldError
from polyfleet.wire.requests import SequenceRequest

DEPTHS = pytest.mark.parametrize("depth", [1, 2, 3])
END = frozenset({3})


def barring(wanted: SequenceRequest, ends: Sequence[int]) -> Callable[[Sequence[int]], Bools]:
    """All tokens but `ends` up to the request's min_tokens, then all."""

    def allowed(generated_ids: Sequence[int]) -> Bools:
        mask = np.ones(VOCABULARY, dtype=bool)
        if len(generated_ids) < wanted.min_tokens:
            mask[list(ends)] = False
        return mask

    return allowed


def stopped_early(number: int, min_tokens: int) -> SequenceRequest:
    """One that its own third token would stop."""
    plain = request(number, 5, 12)
    stop = expected_tokens(plain, 256)[0][2]
    return replace(plain, stop_token_ids=(stop,), min_tokens=min_tokens)


@DEPTHS
@pytest.mark.parametrize("num_blocks", [64, 9])  # 9: sequences are preempted and begin anew
def test_nothing_ends_a_sequence_before_min_tokens(depth: int, num_blocks: int) -> None:
    batcher, _ = make_batcher(num_blocks=num_blocks, depth=depth, end_token_ids=END, context_length=32)
    wanted = [stopped_early(number, min_tokens) for number, min_tokens in enumerate((0, 1, 2, 3, 8, 11, 12), 1)]
    for each in wanted:
        batcher.add(each)
    outcomes = run_all(batcher)
    for each in wanted:
        expected, reason = expected_tokens(each, 32, END, barring(each, (*each.stop_token_ids, *END)))
        outcome = outcomes[each.sequence_id]
        assert (outcome.token_ids, outcome.finish_reason, outcome.error) == (expected, FinishReason(reason), "")
        assert len(expected) >= each.min_tokens
    assert batcher.pool.num_free == num_blocks


def test_steps_that_bar_ends_need_not_wait_for_the_tokens_before() -> None:
    drawn_ahead = []
    batcher, executor = make_batcher(depth=2)
    draw = executor.draw

    def watched(pending: object, masks: Masks | None = None) -> None:
        drawn_ahead.append(len(batcher._flights))
        draw(pending, masks)  # type: ignore[arg-type]

    executor.draw = watched  # type: ignore[method-assign]
    batcher.add(stopped_early(1, 8))
    run_all(batcher)
    assert max(drawn_ahead) == 1
    assert executor.masks[-1] is None  # they are barred no longer


@DEPTHS
@pytest.mark.parametrize("done", [1, 4, 7, 8])
def test_a_sequence_that_moved_counts_what_it_has(depth: int, done: int) -> None:
    whole = stopped_early(1, 8)
    tokens, reason = expected_tokens(whole, 256, allowed=barring(whole, whole.stop_token_ids))
    moved = replace(whole, generated_ids=tuple(tokens[:done]))
    batcher, _ = make_batcher(depth=depth)
    batcher.add(moved)
    outcome = run_all(batcher)["s1"]
    assert (outcome.token_ids, outcome.finish_reason) == (tokens[done:], FinishReason(reason))


def test_a_mask_holds_beside_it() -> None:
    odd: Bools = np.arange(VOCABULARY) % 2 == 1

    class Odd:
        ready = True

        def fill(self, generated_ids: Sequence[int], bits: Int32s) -> None:
            bits[:] = packed(odd)

    stop = expected_tokens(request(1, 5, 9), 256, allowed=lambda ids: odd)[0][2]
    wanted = replace(request(1, 5, 9), stop_token_ids=(stop,), min_tokens=6)
    bars = barring(wanted, (stop,))
    batcher, _ = make_batcher()
    batcher.add(wanted, Odd())
    outcomes: Outcomes = run_all(batcher)
    both = expected_tokens(wanted, 256, allowed=lambda ids: odd & bars(ids))[0]
    assert outcomes["s1"].token_ids == both


def test_tokens_that_end_nothing_are_not_barred() -> None:
    plain = request(1, 5, 9)
    end = frozenset({expected_tokens(plain, 256)[0][2]})
    batcher, _ = make_batcher(end_token_ids=end)
    batcher.add(replace(plain, ignore_eos=True, min_tokens=9))
    assert run_all(batcher)["s1"].token_ids == expected_tokens(plain, 256)[0]


def test_ends_beyond_the_vocabulary_are_no_tokens() -> None:
    batcher, _ = make_batcher(end_token_ids=frozenset({VOCABULARY, 10**6}))
    batcher.add(replace(request(1), min_tokens=3))
    assert run_all(batcher)["s1"].token_ids == expected_tokens(request(1), 256)[0]


def test_where_every_token_would_end_it_a_sequence_fails_alone() -> None:
    batcher, _ = make_batcher(end_token_ids=frozenset(range(VOCABULARY)))
    batcher.add(replace(request(1), min_tokens=2))
    batcher.add(replace(request(2), ignore_eos=True))
    outcomes = run_all(batcher)
    assert "leaves no token" in outcomes["s1"].error
    assert not outcomes["s2"].error


@pytest.mark.parametrize(
    ("max_tokens", "min_tokens", "problem"),
    [
        (6, -1, "min_tokens: must be 0 or more, not -1"),
        (6, 7, "min_tokens: must be at most max_tokens, which is 6, not 7"),
        (None, 2**70, None),
        (6, 6, None),
    ],
)
def test_what_min_tokens_may_be(max_tokens: int | None, min_tokens: int, problem: str | None) -> None:
    wanted = SequenceRequest("s", (1,), max_tokens=max_tokens, min_tokens=min_tokens)
    if problem is None:
        check_request(wanted, VOCABULARY)
    else:
        with pytest.raises(FieldError, match=problem):
            check_request(wanted, VOCABULARY)


def test_min_tokens_have_room_in_the_context() -> None:
    batcher, _ = make_batcher(num_blocks=4)
    with pytest.raises(FieldError, match="min_tokens: must be at most 12, not 13: the context has 16 tokens, and the"):
        batcher.add(request(1, 4, 13, min_tokens=13))
    batcher.add(request(2, 4, 13, min_tokens=12))
    assert len(run_all(batcher)["s2"].token_ids) == 12

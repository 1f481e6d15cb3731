"""Counts for penalties: kept up token by token, equal to counting anew."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from polyfleet.sampling.counts import TokenCounts

TOKENS = st.lists(st.integers(0, 300), max_size=200)


@given(TOKENS, TOKENS, TOKENS)
def test_counts_equal_counting_anew(prompt: list[int], generated: list[int], more: list[int]) -> None:
    counts = TokenCounts(prompt, generated)
    for token_id in more:
        counts.add(token_id)
    expected = Counter(generated + more)
    found = dict(zip(counts.ids.tolist(), counts.generated.tolist(), strict=True))
    assert len(found) == len(counts.ids)
    assert found == {token_id: expected[token_id] for token_id in {*prompt, *generated, *more}}
    assert sorted(counts.ids[counts.answer].tolist()) == sorted(expected)


@given(TOKENS, TOKENS, st.lists(st.integers(0, 400), max_size=20))
def test_what_is_removed_leaves_no_trace(prompt: list[int], generated: list[int], drafts: list[int]) -> None:
    counts, untouched = TokenCounts(prompt, generated), TokenCounts(prompt, generated)
    for token_id in drafts:
        counts.add(token_id)
    for token_id in reversed(drafts):
        counts.remove(token_id)
    for found, expected in ((counts.ids, untouched.ids), (counts.generated, untouched.generated)):
        assert found.tolist() == expected.tolist()
    assert sorted(counts.answer.tolist()) == sorted(untouched.answer.tolist())


def test_a_long_prompt_costs_what_its_distinct_tokens_cost() -> None:
    counts = TokenCounts([7, 8] * 50_000)
    counts.add(8)
    assert counts.ids.tolist() == [7, 8]
    assert counts.generated.tolist() == [0, 1]

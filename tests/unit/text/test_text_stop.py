"""Stop strings across the borders of pieces, against a naive search over the whole text."""

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyfleet.text.stop import StopMatcher, StopStrings

LETTERS = "ab€"


def run(stops: Sequence[str], pieces: Sequence[str]) -> tuple[str, bool]:
    matcher = StopMatcher(StopStrings(stops))
    text = "".join(matcher.add(piece) for piece in pieces)
    return text + matcher.finish(), bool(matcher.matched)


def oracle(stops: Sequence[str], text: str) -> tuple[str, bool]:
    """Character by character: the first end of a stop string, the longest that ends there."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            return text[: end - max(map(len, found))], True
    return text, False


def cut(text: str, points: Sequence[int]) -> list[str]:
    borders = [0, *sorted(point % (len(text) + 1) for point in points), len(text)]
    return [text[a:b] for a, b in pairwise(borders)]


@given(
    stops=st.lists(st.text(LETTERS, min_size=1, max_size=4), min_size=1, max_size=4),
    text=st.text(LETTERS, max_size=30),
    points=st.lists(st.integers(0, 100), max_size=12),
)
def test_result_equals_the_naive_search_for_any_cut(stops: list[str], text: str, points: list[int]) -> None:
    assert run(stops, cut(text, points)) == oracle(stops, text)


@given(stops=st.lists(st.text(LETTERS, min_size=1, max_size=4), min_size=1, max_size=4), text=st.text(LETTERS))
def test_held_tail_is_the_shortest_possible(stops: list[str], text: str) -> None:
    matcher = StopMatcher(StopStrings(stops))
    shown = matcher.add(text)
    if not matcher.matched:
        tails = [k for k in range(len(text) + 1) if any(s != text[k:] and s.startswith(text[k:]) for s in stops)]
        assert shown == text[: min(tails)]


@pytest.mark.parametrize(
    ("stops", "pieces", "expected"),
    [
        (["STOP"], ["go ST", "OP on"], ("go ", True)),
        (["STOP"], ["go ST", "AY"], ("go STAY", False)),
        (["\n\n"], ["a\n", "b\n", "\nc"], ("a\nb", True)),
        (["abab", "b"], ["a", "b"], ("a", True)),
        (["ab", "b"], ["xab"], ("x", True)),
        (["aab"], ["aaa", "ab"], ("aa", True)),
        (["<|im_end|>"], ["tail <|im_"], ("tail <|im_", False)),
    ],
)
def test_examples(stops: list[str], pieces: list[str], expected: tuple[str, bool]) -> None:
    assert run(stops, pieces) == expected


def test_nothing_comes_out_after_a_match() -> None:
    matcher = StopMatcher(StopStrings(["b"]))
    assert matcher.add("ab") == "a"
    assert matcher.add("more") == ""
    assert matcher.finish() == ""


def test_the_held_tail_comes_out_at_the_end() -> None:
    matcher = StopMatcher(StopStrings(["END"]))
    assert matcher.add("the EN") == "the "
    assert matcher.finish() == "EN"


@given(
    stops=st.lists(st.text(LETTERS, min_size=1, max_size=4), min_size=1, max_size=4),
    parts=st.lists(st.tuples(st.text(LETTERS, max_size=4), st.booleans()), max_size=12),
)
def test_invisible_parts_are_matched_and_never_come_out(stops: list[str], parts: list[tuple[str, bool]]) -> None:
    matcher = StopMatcher(StopStrings(stops))
    shown = "".join(matcher.add(part, visible) for part, visible in parts) + matcher.finish()
    kept, matched = oracle(stops, "".join(part for part, _ in parts))
    visible = [flag for part, flag in parts for _ in part]
    assert shown == "".join(c for c, flag in zip(kept, visible, strict=False) if flag)
    assert bool(matcher.matched) is matched

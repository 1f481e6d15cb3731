"""Streamed text on a terminal: words whole, nothing lost, however it is cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from polyfleet.cli.terminal.wrap import Wrapper


def wrapped(text: str, width: int, size: int = 1) -> str:
    wrapper = Wrapper(width)
    parts = [wrapper.add(text[at : at + size]) for at in range(0, len(text), size)]
    return "".join(parts) + wrapper.finish()


def test_words_are_kept_whole() -> None:
    assert wrapped("The quick brown fox jumps", 10) == "The quick\nbrown fox\njumps"
    assert wrapped("a  b\n\n  c d", 10) == "a  b\n\n  c d"


def test_a_word_wider_than_the_terminal_is_cut() -> None:
    assert wrapped("see abcdefghijkl now", 5) == "see\nabcde\nfghij\nkl\nnow"


def test_wide_characters_need_no_space_between_them() -> None:
    assert wrapped("\u4f60\u597d\u4e16\u754c", 5) == "\u4f60\u597d\n\u4e16\u754c"


def test_a_word_is_shown_once_it_has_ended() -> None:
    wrapper = Wrapper(10)
    assert wrapper.add("Hel") == ""
    assert wrapper.add("lo wor") == "Hello"
    assert wrapper.finish() == " wor"


@pytest.mark.parametrize("size", [2, 5])
@given(text=st.text("ab \n\u4f60", max_size=60), width=st.integers(2, 12))
def test_nothing_is_lost_and_no_line_too_long(size: int, text: str, width: int) -> None:
    shown = wrapped(text, width)
    assert shown == wrapped(text, width, size)
    assert "".join(shown.split()) == "".join(text.split())
    assert all(cell_len(line) <= width for line in shown.split("\n"))


def test_a_model_steers_no_terminal() -> None:
    assert wrapped("a\x1b[2Jb \x07c\r\n\td\x9b1A", 40) == "a[2Jb c\n\td1A"

"""Pieces of text as tokens come: concatenated they are the whole, and none ends within a character."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.text_assets import assets_document, byte_level_tokenizer, sentencepiece_like_tokenizer

from polyfleet.text.detokenize import MAX_HELD_TOKENS, WindowDetokenizer, byte_alphabet
from polyfleet.text.model_text import ModelText

BYTE_LEVEL = ModelText(assets_document())
SENTENCEPIECE = ModelText(assets_document(sentencepiece_like_tokenizer()))
SIZE = byte_level_tokenizer().get_vocab_size()


def pieces(text: ModelText, token_ids: Sequence[int]) -> list[str]:
    """One piece per token, and what is left at the end."""
    detokenizer = text.detokenizer()
    return [*(detokenizer.add([token_id]) for token_id in token_ids), detokenizer.finish()]


@given(st.lists(st.integers(0, SIZE + 3), max_size=60))
def test_random_tokens_give_the_whole_text(token_ids: list[int]) -> None:
    assert "".join(pieces(BYTE_LEVEL, token_ids)) == BYTE_LEVEL.decode(token_ids)


@given(st.text(max_size=60))
def test_any_text_comes_back_and_no_piece_is_broken(text: str) -> None:
    token_ids = BYTE_LEVEL.encode(text)
    parts = pieces(BYTE_LEVEL, token_ids)
    assert "".join(parts) == text
    assert "\ufffd" in text or not any("\ufffd" in part for part in parts)


@given(st.text(max_size=60), st.lists(st.integers(1, 5), min_size=1))
def test_pieces_of_several_tokens(text: str, sizes: list[int]) -> None:
    token_ids, detokenizer, out = BYTE_LEVEL.encode(text), BYTE_LEVEL.detokenizer(), ""
    for size in sizes:
        out += detokenizer.add(token_ids[:size])
        token_ids = token_ids[size:]
    assert out + detokenizer.add(token_ids) + detokenizer.finish() == text


@settings(max_examples=200)
@given(st.text(alphabet="abc the日本é😀 \n", max_size=40))
def test_sentencepiece_text_comes_back(text: str) -> None:
    token_ids = SENTENCEPIECE.encode(text, add_special_tokens=False)
    parts = pieces(SENTENCEPIECE, token_ids)
    assert "".join(parts) == SENTENCEPIECE.decode(token_ids) == text
    assert not any("\ufffd" in part for part in parts)


def test_sentencepiece_keeps_the_space_between_words() -> None:
    vocab = sentencepiece_like_tokenizer().get_vocab()
    token_ids = [vocab["▁the"], vocab["▁quick"], vocab["▁fox"]]
    assert pieces(SENTENCEPIECE, token_ids) == ["the", " quick", " fox", ""]


def test_a_character_of_four_tokens_comes_out_whole() -> None:
    alphabet = {byte: character for character, byte in byte_alphabet().items()}
    vocab = byte_level_tokenizer().get_vocab()
    token_ids = [vocab[alphabet[byte]] for byte in "🦊".encode()]
    assert pieces(BYTE_LEVEL, token_ids) == ["", "", "", "🦊", ""]
    assert pieces(BYTE_LEVEL, token_ids[:3]) == ["", "", "", "\ufffd"]


def test_special_tokens_have_no_text() -> None:
    token_ids = [1, *BYTE_LEVEL.encode("fox"), 2]
    assert "".join(pieces(BYTE_LEVEL, token_ids)) == "fox" == BYTE_LEVEL.decode(token_ids)


@pytest.mark.parametrize("count", [5, 40, 400])
def test_the_window_stays_short_over_broken_bytes(count: int) -> None:
    lengths: list[int] = []

    def decode(token_ids: Sequence[int]) -> str:
        lengths.append(len(token_ids))
        return SENTENCEPIECE.decode(token_ids)

    lone_continuation = 3 + 0x80
    detokenizer = WindowDetokenizer(decode)
    text = "".join(detokenizer.add([lone_continuation]) for _ in range(count)) + detokenizer.finish()
    assert text == "\ufffd" * count
    assert max(lengths) <= 2 * MAX_HELD_TOKENS + 2


def test_byte_alphabet_spells_every_byte_once() -> None:
    alphabet = byte_alphabet()
    assert sorted(alphabet.values()) == list(range(256))
    assert alphabet["Ġ"] == 0x20
    assert alphabet["Ċ"] == 0x0A
    assert alphabet["a"] == 0x61

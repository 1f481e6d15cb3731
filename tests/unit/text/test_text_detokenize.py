"""Pieces of text as tokens come: concatenated they are the whole, and none ends within a character."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.text_assets import (
    assets_document,
    byte_level_tokenizer,
    metaspace_tokenizer,
    sentencepiece_like_tokenizer,
    suffix_tokenizer,
    wordpiece_tokenizer,
)
from tokenizers import AddedToken, Tokenizer

from polyfleet.text.detokenize import MAX_HELD_TOKENS, WindowDetokenizer, byte_alphabet
from polyfleet.text.model_text import ModelText

BYTE_LEVEL = ModelText(assets_document())
SENTENCEPIECE = ModelText(assets_document(sentencepiece_like_tokenizer()))
SP_BYTE = 3  # the token of byte 0; those of the others follow
KINDS = {
    "byte level": BYTE_LEVEL,
    "sentencepiece": SENTENCEPIECE,
    "metaspace": ModelText(assets_document(metaspace_tokenizer())),
    "wordpiece": ModelText(assets_document(wordpiece_tokenizer())),
    "suffix": ModelText(assets_document(suffix_tokenizer())),
}
WORDS = {
    "byte level": range(byte_level_tokenizer().get_vocab_size()),
    "sentencepiece": [*range(3), *range(SP_BYTE + 256, sentencepiece_like_tokenizer().get_vocab_size())],
    "metaspace": range(metaspace_tokenizer().get_vocab_size()),
    "wordpiece": range(wordpiece_tokenizer().get_vocab_size()),
    "suffix": range(suffix_tokenizer().get_vocab_size()),
}
ADDED = ["é", "été", "£¬", "日本", "▁x", "ĠthÄ", "😀", "<tool é>"]
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


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_an_answer_is_the_whole_text_less_that_of_its_prompt(kind: str, data: st.DataObject) -> None:
    """Whatever the prompt, and however the answer's tokens are cut into parcels."""
    text, ids = KINDS[kind], st.lists(st.sampled_from(WORDS[kind]), max_size=24)
    prompt, answer, cut = data.draw(ids), data.draw(ids), data.draw(st.integers(1, 5))
    detokenizer = text.detokenizer(prompt)
    parts = [detokenizer.add(answer[start : start + cut]) for start in range(0, len(answer), cut)]
    shown = "".join(parts) + detokenizer.finish()
    before, whole = text.decode(prompt), text.decode(prompt + answer)
    if not before.endswith("\ufffd"):
        assert before + shown == whole
    elif "\ufffd" not in shown:
        assert whole.endswith(shown)


@pytest.mark.parametrize("kind", ["sentencepiece", "metaspace"])
@pytest.mark.parametrize("between", [[], [2], [2, 1, 1, 2]])
@pytest.mark.parametrize("words_before", [1, 12])
@pytest.mark.parametrize("specials_before", [0, 1, 40])
def test_words_keep_their_space_behind_a_prompt_and_behind_special_tokens(
    kind: str, between: list[int], words_before: int, specials_before: int
) -> None:
    text = KINDS[kind]
    vocab = {"sentencepiece": sentencepiece_like_tokenizer, "metaspace": metaspace_tokenizer}[kind]().get_vocab()
    the, fox = [vocab["▁the"]], [vocab["▁fox"]]
    detokenizer = text.detokenizer([1, *the * words_before, *[2] * specials_before])
    shown = [detokenizer.add([token_id]) for token_id in [*fox, *between, *the]]
    assert "".join(shown) + detokenizer.finish() == " fox the"


@pytest.mark.parametrize("prompt", [[], [1], [1] * 40])
def test_the_first_word_of_all_has_no_space(prompt: list[int]) -> None:
    vocab = sentencepiece_like_tokenizer().get_vocab()
    detokenizer = SENTENCEPIECE.detokenizer(prompt)
    assert [detokenizer.add([vocab[word]]) for word in ("▁the", "▁fox")] == ["the", " fox"]


@pytest.mark.parametrize("character", ["é", "日", "🦊"])
@pytest.mark.parametrize("text", [BYTE_LEVEL, SENTENCEPIECE], ids=["byte level", "sentencepiece"])
@pytest.mark.parametrize("before", ["", "the "])
def test_a_character_that_the_prompt_left_half_is_completed(character: str, text: ModelText, before: str) -> None:
    alphabet = {byte: spelling for spelling, byte in byte_alphabet().items()}
    vocab = byte_level_tokenizer().get_vocab()
    spelled = character.encode()
    ids = [vocab[alphabet[b]] if text is BYTE_LEVEL else SP_BYTE + b for b in spelled]
    start = text.encode(before, add_special_tokens=False) if before else []
    plain = text.encode("fox", add_special_tokens=False)[-1:]
    for cut in range(1, len(ids)):
        detokenizer = text.detokenizer([*start, *ids[:cut]])
        assert "".join(detokenizer.add([i]) for i in [*ids[cut:], *plain]) == character + text.decode([*plain]).strip()
        detokenizer = text.detokenizer([*start, *ids[:cut]])
        assert detokenizer.add(plain) + detokenizer.finish() == text.decode(plain).strip()
        assert text.detokenizer([*start, *ids[:cut]]).finish() == ""


@pytest.mark.parametrize("character", ["é", "日", "🦊"])
@pytest.mark.parametrize("length", range(1, 5))
def test_a_prompt_that_ends_in_many_characters_spelled_by_bytes(character: str, length: int) -> None:
    """The last tokens of the prompt alone may begin within one of them."""
    prompt, answer = [SP_BYTE + byte for byte in (character * 20).encode()], (character * length + "1").encode()
    for cut in range(len(character.encode()) * 8):
        detokenizer = SENTENCEPIECE.detokenizer(prompt[cut:])
        shown = "".join(detokenizer.add([SP_BYTE + byte]) for byte in answer)
        if not cut % len(character.encode()):
            assert shown + detokenizer.finish() == answer.decode()
        half = SENTENCEPIECE.detokenizer([*prompt, *(SP_BYTE + byte for byte in answer[: cut + 1])])
        rest = "".join(half.add([SP_BYTE + byte]) for byte in answer[cut + 1 :])
        assert answer.decode().endswith(rest)
        assert len(rest.encode()) >= len(answer) - cut - 1


def with_added(special: bool) -> tuple[ModelText, dict[str, int]]:
    tokenizer = Tokenizer.from_str(byte_level_tokenizer().to_str())
    added = [AddedToken(content, normalized=False, special=special) for content in ADDED]
    tokenizer.add_special_tokens(added) if special else tokenizer.add_tokens(added)
    return ModelText(assets_document(tokenizer)), tokenizer.get_vocab()


def test_added_tokens_are_spelled_as_they_are_whatever_their_characters() -> None:
    text, vocab = with_added(special=False)
    for content in ADDED:
        token_id = vocab[content]
        around = [*text.encode("un "), token_id, *text.encode(" ici")]
        assert text.decode(around) == "".join(pieces(text, around)) == f"un {content} ici"
        assert text.token_text(token_id) == content
        assert text.pieces([token_id]) == [content]
        assert text.special_text(token_id) == ""
    assert text.decode(text.encode("un été ici")) == "un été ici"


def test_special_tokens_are_spelled_as_they_are_where_they_are_shown() -> None:
    text, vocab = with_added(special=True)
    for content in ADDED:
        token_id = vocab[content]
        assert text.decode([token_id]) == ""
        assert text.token_text(token_id) == text.special_text(token_id) == content


def test_a_token_reads_as_within_a_text() -> None:
    vocab = sentencepiece_like_tokenizer().get_vocab()
    assert SENTENCEPIECE.token_text(vocab["▁the"]) == " the"
    assert SENTENCEPIECE.token_text(vocab["é"]) == "é"
    assert SENTENCEPIECE.token_text(SP_BYTE + 0x41) == "A"
    assert KINDS["wordpiece"].token_text(wordpiece_tokenizer().get_vocab()["##es"]) == "es"


@pytest.mark.parametrize("text", [BYTE_LEVEL, SENTENCEPIECE], ids=["byte level", "sentencepiece"])
def test_tokens_that_share_a_character_have_its_bytes(text: ModelText) -> None:
    ids = text.encode("a🦊", add_special_tokens=False)
    parts = [text.partial_bytes(token_id) for token_id in ids]
    assert b"".join(parts) == "🦊".encode()
    assert [bool(part) for part in parts] == ["\ufffd" in text.token_text(token_id) for token_id in ids]

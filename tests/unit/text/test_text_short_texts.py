"""Texts that an event loop encodes itself: the same ids, and only what a measured hostile text of its length allows."""

import logging
from typing import Any

import pytest
from tests.support.text_assets import (
    assets_document,
    byte_level_tokenizer,
    sentencepiece_like_tokenizer,
    wordpiece_tokenizer,
)
from tokenizers import Regex, Tokenizer, normalizers, pre_tokenizers

from polyfleet.text import short_texts
from polyfleet.text.prompt_text import PromptText
from polyfleet.text.short_texts import HOSTILE, SIZES, ShortTexts, hostile


def taking(monkeypatch: pytest.MonkeyPatch, seconds: Any) -> None:
    """Texts take so long as `seconds` says of each."""
    monkeypatch.setattr(ShortTexts, "_seconds", lambda _, text: seconds(text))


@pytest.mark.parametrize("make", [byte_level_tokenizer, sentencepiece_like_tokenizer, wordpiece_tokenizer])
def test_they_have_the_ids_that_prompt_text_gives(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    taking(monkeypatch, lambda _: 0.0)
    document = assets_document(make())
    short, text = ShortTexts(document), PromptText(document)
    assert short.max_bytes == SIZES[0]
    for each in ("The quick fox", "é😀 <|im_end|>", "", *(hostile(signs, 200) for signs in HOSTILE)):
        assert short.takes(each)
        assert short.encode(each) == text.encode(each)
        assert short.encode(each, add_special_tokens=False) == text.encode(each, add_special_tokens=False)


def test_bytes_bound_them_not_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    taking(monkeypatch, lambda _: 0.0)
    short, most = ShortTexts(assets_document()), SIZES[0]
    assert short.takes("a" * most)
    assert not short.takes("a" * (most + 1))
    assert short.takes("é" * (most // 2))
    assert not short.takes("é" * (most // 2 + 1))
    assert not short.takes("a\ud800")


@pytest.mark.parametrize("worst", HOSTILE[::9])
def test_the_worst_hostile_text_decides_how_long_they_may_be(worst: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # One kind alone is slow, in the square of its length, as where a pattern goes back over a run.
    taking(monkeypatch, lambda text: (len(text.encode()) / 512) ** 2 * 0.001 if set(text) <= set(worst) else 0.0)
    assert ShortTexts(assets_document()).max_bytes == 512


def test_a_tokenizer_that_is_slow_at_any_length_takes_none(monkeypatch: pytest.MonkeyPatch) -> None:
    taking(monkeypatch, lambda _: 0.0011)
    short = ShortTexts(assets_document())
    assert short.max_bytes == 0
    assert not short.takes("a")


def test_a_busy_machine_is_no_slow_tokenizer(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = iter(range(10**6))
    taking(monkeypatch, lambda _: 0.0 if next(calls) % 3 == 0 else 1.0)
    assert ShortTexts(assets_document()).max_bytes == SIZES[0]


@pytest.mark.parametrize("pattern", [r"(a+)+$", r"(?:a|a)* b", r"(\s*){2,}"])
def test_patterns_that_could_take_exponentially_long_are_not_tried(
    pattern: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    taking(monkeypatch, lambda _: 0.0)
    for normalized in (True, False):
        tokenizer = Tokenizer.from_str(byte_level_tokenizer().to_str())
        level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        if normalized:
            tokenizer.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Replace(Regex(pattern), "x")])
        else:
            split = pre_tokenizers.Split(Regex(pattern), "isolated")
            tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, level])
        assert ShortTexts(assets_document(tokenizer)).max_bytes == 0


def test_one_that_takes_long_all_the_same_is_the_last(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    taking(monkeypatch, lambda _: 0.0)
    short = ShortTexts(assets_document())
    assert short.encode("a")
    assert short.takes("a")
    monkeypatch.setattr(short_texts, "HOLD_SECONDS", 0.0)
    assert short.encode("a")  # by the clock it is late, yet it was others who had the processor
    assert short.takes("a")
    taking(monkeypatch, lambda _: 0.011)
    with caplog.at_level(logging.WARNING):
        assert short.encode("a " * 100) == PromptText(assets_document()).encode("a " * 100)
    assert not short.takes("a")
    assert "A short text took long" in caplog.text

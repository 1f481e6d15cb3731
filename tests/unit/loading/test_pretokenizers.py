"""Pre-tokenizers against an engine of regular expressions of its own, pattern by pattern, and by examples."""

import json
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import regex  # type: ignore[import-untyped]
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.tiny_tokenizers import byte_characters
from tokenizers import Tokenizer

from polyfleet.loading.tokenizer.pretokenizers import GPT2_PATTERN, PRE_TOKENIZERS

CHARACTERS = "aBçЖ中文かな한ǅ123٣'sTLlRe \t\n\r.,!?/-_(){}|`$€́ं🙂…。\u2028"
WORDS = ("I'LL", "don't", "  ", "12345", "1234567", "\r\n\n", "HelloWorld", "ÀÉ", "x=1;", "<sentinel:12>", "IMGIMGABZ")
TEXTS = st.lists(st.one_of(st.sampled_from(WORDS), st.text(CHARACTERS, max_size=6)), max_size=6).map("".join)
OF_BYTES = byte_characters()
BYTE_LEVEL = [name for name, each in PRE_TOKENIZERS.items() if not each.characters]


@cache
def pipeline(name: str) -> Any:
    """By way of a tokenizer, whose JSON holds it."""
    sequence = {"type": "Sequence", "pretokenizers": list(PRE_TOKENIZERS[name].steps)}
    made = {"version": "1.0", "model": {"type": "BPE", "vocab": {}, "merges": []}, "pre_tokenizer": sequence}
    return Tokenizer.from_str(json.dumps(made)).pre_tokenizer


def pieces(name: str, text: str) -> list[str]:
    """As they read."""
    found = [piece for piece, _ in pipeline(name).pre_tokenize_str(text)]
    return [bytes(map(OF_BYTES.index, piece)).decode() for piece in found]


@cache
def patterns(name: str) -> list[Any]:
    found = []
    for step in PRE_TOKENIZERS[name].steps:
        if step["type"] == "Split":
            found.append(step["pattern"]["Regex"])
        elif step["type"] == "Digits":
            found.append(r"\p{N}")
        elif step["use_regex"]:
            found.append(GPT2_PATTERN)
    found = [re.sub(r"\\x\{(\w+)\}", lambda match: chr(int(match[1], 16)), each) for each in found]
    return [regex.compile(each, flags=regex.V1 if "&&" in each else 0) for each in found]


def cut(text: str, pattern: Any) -> Iterator[str]:
    """At its matches, which are pieces as what lies between them is."""
    end = 0
    for match in pattern.finditer(text):
        yield text[end : match.start()]
        yield match[0]
        end = match.end()
    yield text[end:]


@given(TEXTS)
@settings(max_examples=12, deadline=None, derandomize=True)
def test_all_of_them_cut_as_their_patterns_say(text: str) -> None:
    for name in BYTE_LEVEL:
        expected = [text]
        for pattern in patterns(name):
            expected = [piece for whole in expected for piece in cut(whole, pattern) if piece]
        assert pieces(name, text) == [each for each in expected if each], name


@pytest.mark.parametrize(
    ("names", "text", "expected"),
    [
        ("jais-2", "a" + " " * 7 + "b", ["a", "    ", "  ", " b"]),
        ("llama-bpe dbrx smaug-bpe glm4 chatglm-bpe", "it's 12345\n\n x", ["it", "'s", " ", "123", "45", "\n\n", " x"]),
        ("stablelm2 hunyuan megrez grok-2", "It'S 12 é", ["It", "'S", " ", "1", "2", " é"]),
        ("deepseek-v3 hunyuan-dense", "日本語abc 1234!", ["日本語", "abc", " ", "123", "4", "!"]),
        ("deepseek-coder", "def f1():\n", ["def", " f", "1", "():", "\n"]),
        ("deepseek-llm", "Hi 中文, 12", ["Hi", " ", "中文", ",", " ", "12"]),
        ("falcon", "cost $1234!", ["cost", " ", "$", "123", "4", "!"]),
        ("mpt olmo jais gpt-2 exaone4", "I'll 123  x", ["I", "'ll", " 123", " ", " x"]),
        ("exaone minerva-7b command-r", "a 123 b", ["a", " ", "1", "2", "3", " b"]),
        ("poro-chat bloom gpt3-finnish", "Hei, maailma 12!", ["Hei", ",", " maailma", " 12", "!"]),
        ("viking", "vuosi 1999", ["vuosi", " ", "1", "9", "9", "9"]),
        ("tekken", "HelloWorld 12//", ["Hello", "World", " ", "1", "2", "//"]),
        ("gpt-4o llama4", "HelloWorld's 1234", ["Hello", "World's", " ", "123", "4"]),
        ("kimi-k2", "中文Hello 1234's", ["中文", "Hello", " ", "123", "4", "'s"]),
        ("superbpe", "by the way 1234567", ["by the way ", "1", "234", "567"]),
        ("afmoe tiny_aya", "1234567", ["1", "234", "567"]),
        ("seed-coder", "a;\n\nb 12", ["a", ";", "\n\n", "b", " ", "1", "2"]),
        ("bailingmoe", "We'RE 12\n\n", ["We", "'RE", " ", "1", "2", "\n\n"]),
        ("ufakzeka", "Ankara'ya", ["Ankara", "'ya"]),
        ("qwen35", "नमस्ते", ["नमस्ते"]),
    ],
)
def test_examples(names: str, text: str, expected: list[str]) -> None:
    for name in names.split():
        assert pieces(name, text) == expected, name

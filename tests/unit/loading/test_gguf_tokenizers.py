"""Tokenizers out of GGUF metadata: what they encode and decode, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.tiny_models import TinyShape, write_gguf
from tests.support.tiny_tokenizers import byte_level_metadata, sentencepiece_metadata
from tokenizers import Tokenizer

from polyfleet.loading.load import load_model
from polyfleet.loading.model import ModelFileError, TokenizerAssets

SHAPE = TinyShape(vocabulary=300)
FIRST_BYTE = 3  # the id of byte 0 in both vocabularies


def assets(tmp_path: Path, metadata: dict[str, Any]) -> TokenizerAssets:
    write_gguf(tmp_path / "model.gguf", SHAPE, extra=metadata)
    found = load_model(tmp_path / "model.gguf").tokenizer
    assert found is not None
    return found


def tokenizer_of(tmp_path: Path, metadata: dict[str, Any]) -> Tokenizer:
    document = json.loads(assets(tmp_path, metadata).document)
    return Tokenizer.from_str(json.dumps(document["tokenizer"]))


def tokens(tokenizer: Tokenizer, text: str) -> list[str]:
    found: list[str] = tokenizer.encode(text, add_special_tokens=False).tokens
    return found


def test_document(tmp_path: Path) -> None:
    document = json.loads(assets(tmp_path, byte_level_metadata()).document)
    old = {"tokenizer", "chat_template", "bos_token", "eos_token", "add_bos", "end_token_ids"}
    assert set(document) == old | {"special_tokens", "sampling_defaults"}
    assert document["special_tokens"] == {"bos_token": "<|start|>", "eos_token": "<|end|>"}
    assert document["sampling_defaults"] == {}
    assert document["chat_template"] == "{{ messages }}"
    assert (document["bos_token"], document["eos_token"]) == ("<|start|>", "<|end|>")
    assert document["add_bos"] is False
    assert document["end_token_ids"] == [1]


def test_equal_assets_hash_alike(tmp_path: Path) -> None:
    first = assets(tmp_path, byte_level_metadata())
    assert first == assets(tmp_path, dict(reversed(byte_level_metadata().items())))
    assert first.hash != assets(tmp_path, byte_level_metadata() | {"tokenizer.chat_template": "other"}).hash
    assert len(first.hash) == 64


def test_byte_level_merges_special_and_user_tokens(tmp_path: Path) -> None:
    tokenizer = tokenizer_of(tmp_path, byte_level_metadata())
    assert tokens(tokenizer, "hello hello") == ["hello", "Ġhello"]
    assert tokens(tokenizer, "<|start|>hell<tool>o") == ["<|start|>", "hell", "<tool>", "o"]
    encoded = tokenizer.encode("é\n<tool>", add_special_tokens=False)
    assert encoded.ids == [FIRST_BYTE + 0xC3, FIRST_BYTE + 0xA9, FIRST_BYTE + 10, 2]
    ids = tokenizer.encode("<|start|> hello\té 漢字 <tool>", add_special_tokens=False).ids
    assert tokenizer.decode(ids, skip_special_tokens=True) == " hello\té 漢字 <tool>"


@pytest.mark.parametrize(
    ("pre", "text", "pieces"),
    [
        ("gpt-2", "a  12 I'll", ["a", "Ġ", "Ġ12", "ĠI", "'ll"]),
        ("default", "a  12 I'll", ["a", "Ġ", "Ġ12", "ĠI", "'ll"]),
        ("smollm", "a  12 I'll", ["a", "ĠĠ", "1", "2", "ĠI", "'ll"]),
        ("llama-bpe", "a  12345 I'LL", ["a", "Ġ", "Ġ", "123", "45", "ĠI", "'LL"]),
        ("qwen2", "a 12 I'LL\r\n\nx", ["a", "Ġ", "1", "2", "ĠI", "'LL", "čĊĊ", "x"]),
        ("qwen2", "e\u0301", ["Ã©"]),  # NFC
    ],
)
def test_pre_tokenizers_split_as_their_models_do(tmp_path: Path, pre: str, text: str, pieces: list[str]) -> None:
    tokenizer = tokenizer_of(tmp_path, byte_level_metadata(pre))
    if tokenizer.normalizer is not None:
        text = tokenizer.normalizer.normalize_str(text)
    assert [piece for piece, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text)] == pieces


def test_llama3_vocabularies_start_with_bos_unless_told_otherwise(tmp_path: Path) -> None:
    metadata = byte_level_metadata("llama-bpe")
    assert json.loads(assets(tmp_path, metadata).document)["add_bos"] is True
    metadata["tokenizer.ggml.add_bos_token"] = False
    assert json.loads(assets(tmp_path, metadata).document)["add_bos"] is False


def test_all_end_tokens_are_known(tmp_path: Path) -> None:
    metadata = byte_level_metadata() | {"tokenizer.ggml.eot_token_id": 2, "tokenizer.ggml.eom_token_id": 1}
    write_gguf(tmp_path / "model.gguf", SHAPE, extra=metadata)
    model = load_model(tmp_path / "model.gguf")
    assert model.config.end_token_ids == (1, 2)
    assert model.tokenizer is not None
    assert json.loads(model.tokenizer.document)["end_token_ids"] == [1, 2]


def test_sentencepiece_merges_by_score_and_falls_back_to_bytes(tmp_path: Path) -> None:
    tokenizer = tokenizer_of(tmp_path, sentencepiece_metadata())
    assert tokens(tokenizer, "abc") == ["▁abc"]
    assert tokens(tokenizer, "bcc") == ["▁", "bc", "c"]  # bc (-2) before cc (-7) and ▁b (-7.5)
    assert tokens(tokenizer, "a b") == ["▁a", "▁b"]
    assert tokens(tokenizer, "é漢") == ["▁", "é", "<0xE6>", "<0xBC>", "<0xA2>"]
    assert tokens(tokenizer, "<s>abc") == ["<s>", "▁abc"]
    ids = tokenizer.encode("abc  cab é漢\n", add_special_tokens=False).ids
    assert tokenizer.decode(ids) == "abc  cab é漢\n"


def test_sentencepiece_without_prefix_space(tmp_path: Path) -> None:
    metadata = sentencepiece_metadata() | {"tokenizer.ggml.add_space_prefix": False}
    tokenizer = tokenizer_of(tmp_path, metadata)
    assert tokens(tokenizer, "abc abc") == ["abc", "▁abc"]
    assert tokenizer.decode(tokenizer.encode(" a").ids) == " a"


def test_sentencepiece_starts_with_bos(tmp_path: Path) -> None:
    document = json.loads(assets(tmp_path, sentencepiece_metadata()).document)
    assert document["add_bos"] is True
    assert document["chat_template"] is None


def test_a_file_without_tokenizer(tmp_path: Path) -> None:
    write_gguf(tmp_path / "model.gguf", SHAPE, extra={"tokenizer.ggml.model": "none"})
    assert load_model(tmp_path / "model.gguf").tokenizer is None


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            {"tokenizer.ggml.model": "rwkv"},
            "model 'rwkv' is not supported (supported: llama, gpt2, whitespace, gemma4, bert, t5)",
        ),
        ({"tokenizer.ggml.pre": "tekken9"}, "the pre-tokenizer 'tekken9' is not supported"),
        ({"tokenizer.ggml.tokens": None}, "tokenizer.ggml.tokens is missing"),
        ({"tokenizer.ggml.tokens": [1, 2]}, "tokenizer.ggml.tokens must be a list of strings"),
        ({"tokenizer.ggml.tokens": ["a", "a"]}, "tokenizer.ggml.tokens holds a token twice"),
        ({"tokenizer.ggml.tokens": [str(i) for i in range(301)]}, "has 301 tokens, the model only 300"),
        ({"tokenizer.ggml.token_type": [1, 1]}, "tokenizer.ggml.token_type has 2 entries for 264 tokens"),
        ({"tokenizer.ggml.merges": ["h e", "x yz"]}, "tokenizer.ggml.merges holds 'x yz'"),
        ({"tokenizer.ggml.merges": ["he"]}, "tokenizer.ggml.merges holds 'he'"),
        ({"tokenizer.ggml.merges": None}, "tokenizer.ggml.merges is missing"),
        ({"tokenizer.ggml.bos_token_id": 264}, "tokenizer.ggml.bos_token_id must be 0 to 263, not 264"),
        ({"tokenizer.chat_template": 7}, "tokenizer.chat_template must be a string, not 7"),
        ({"tokenizer.ggml.add_bos_token": "yes"}, "tokenizer.ggml.add_bos_token must be true or false"),
    ],
)
def test_broken_metadata(tmp_path: Path, change: dict[str, Any], reason: str) -> None:
    metadata = {key: value for key, value in (byte_level_metadata() | change).items() if value is not None}
    write_gguf(tmp_path / "model.gguf", SHAPE, extra=metadata)
    with pytest.raises(ModelFileError) as caught:
        load_model(tmp_path / "model.gguf")
    assert str(caught.value).startswith(str(tmp_path / "model.gguf"))
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("scores", [0.0], "tokenizer.ggml.scores has 1 entries for 272 tokens"),
        ("scores", ["a"] * 272, "tokenizer.ggml.scores must hold finite numbers"),
        ("scores", [float("nan")] * 272, "tokenizer.ggml.scores must hold finite numbers"),
        ("token_type", ["a"] * 272, "tokenizer.ggml.token_type must hold finite numbers"),
    ],
)
def test_sentencepiece_with_broken_lists(tmp_path: Path, key: str, value: list[Any], reason: str) -> None:
    metadata = sentencepiece_metadata() | {f"tokenizer.ggml.{key}": value}
    write_gguf(tmp_path / "model.gguf", SHAPE, extra=metadata)
    with pytest.raises(ModelFileError) as caught:
        load_model(tmp_path / "model.gguf")
    assert str(caught.value) == f"{tmp_path / 'model.gguf'}: {reason}"


def characters_metadata(**changes: str) -> dict[str, Any]:
    """Vocabularies whose merges join characters, as Gemma 4's: spaces are ▁, other bytes <0x..>."""
    merges = ["a b", "▁ ab", "\n \n", "é c"]
    joined = [left + right for left, right in (merge.split(" ") for merge in merges)]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *"▁abcé\n", *joined]
    kinds = [2, 3, 3, *[6] * 256, *[1] * (6 + len(joined))]
    return {
        "tokenizer.ggml.model": "gemma4",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [-1000.0] * len(tokens),
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.add_space_prefix": False,
        **{f"tokenizer.ggml.{key}": value for key, value in changes.items()},
    }


@pytest.mark.parametrize("changes", [{}, {"model": "gpt2", "pre": "sarvam-moe"}, {"model": "gpt2", "pre": "gemma4"}])
def test_merges_of_characters(tmp_path: Path, changes: dict[str, str]) -> None:
    """No words are told apart, lines are; what no token spells is bytes; BOS stands where the file says."""
    tokenizer = tokenizer_of(tmp_path, characters_metadata(**changes))
    assert tokens(tokenizer, "ab abc") == ["ab", "▁ab", "c"]
    assert tokens(tokenizer, "  ab\n\n\néc") == ["▁", "▁ab", "\n\n", "\n", "éc"]
    assert tokens(tokenizer, "漢<s>x") == ["<0xE6>", "<0xBC>", "<0xA2>", "<s>", "<0x78>"]
    text = " ab  c\n\néc 漢\tx"
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False).ids) == text
    assert json.loads(assets(tmp_path, characters_metadata(**changes)).document)["add_bos"] is True


def test_words_of_characters(tmp_path: Path) -> None:
    """White space only parts words, and has no tokens."""
    tokenizer = tokenizer_of(tmp_path, characters_metadata(model="whitespace", pre="whitespace"))
    assert tokens(tokenizer, "ab  \nabéc") == ["ab", "ab", "éc"]
    assert tokens(tokenizer, "ab漢") == ["ab", "<0xE6>", "<0xBC>", "<0xA2>"]

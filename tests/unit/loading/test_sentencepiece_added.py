"""Added tokens of SentencePiece vocabularies in GGUF files: own ids wherever they stand, nothing lost around them."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.llama_cpp_spm import LlamaCppSpm
from tests.support.tiny_models import TinyShape, write_gguf
from tests.support.tiny_tokenizers import CONTROL, USER_DEFINED, sentencepiece_metadata
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers

from polyfleet.loading.load import load_model

UNUSED = 5
ADDED = {
    "<|im_end|>": CONTROL,
    "<tool>": USER_DEFINED,
    "<tool>x": USER_DEFINED,
    "été ☃": USER_DEFINED,
    "漢字": USER_DEFINED,
    "\n\n": USER_DEFINED,
    "<reserved>": UNUSED,
    "abcabc": UNUSED,
}
CASES = {
    "a <|im_end|>": ["▁a", "▁", "<|im_end|>"],
    "ab<|im_end|>ab": ["▁", "ab", "<|im_end|>", "▁", "ab"],
    "<|im_end|>": ["<|im_end|>"],
    "<|im_end|> a": ["<|im_end|>", "▁▁", "a"],
    "<tool><tool>  <tool>": ["<tool>", "<tool>", "▁▁", "▁", "<tool>"],
    "<tool>x": ["<tool>x"],
    "a été ☃b": ["▁a", "▁", "été ☃", "▁b"],
    "漢字漢": ["漢字", "▁", "<0xE6>", "<0xBC>", "<0xA2>"],
    "a\n\nb": ["▁a", "\n\n", "▁b"],
    "<s>abc </s>": ["<s>", "▁abc", "▁", "</s>"],
    "": [],
}


def metadata() -> dict[str, Any]:
    values = sentencepiece_metadata()
    values["tokenizer.ggml.tokens"] = values["tokenizer.ggml.tokens"] + list(ADDED)
    values["tokenizer.ggml.token_type"] = values["tokenizer.ggml.token_type"] + list(ADDED.values())
    values["tokenizer.ggml.scores"] = values["tokenizer.ggml.scores"] + [-1000.0 - i for i in range(len(ADDED))]
    return values


@pytest.fixture(scope="module", params=[True, False], ids=["prefix", "no prefix"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Tokenizer, LlamaCppSpm]:
    """The loaded tokenizer and the reference."""
    values = metadata() | {"tokenizer.ggml.add_space_prefix": request.param}
    path = tmp_path_factory.mktemp("spm") / "model.gguf"
    write_gguf(path, TinyShape(vocabulary=300), extra=values)
    assets = load_model(path).tokenizer
    assert assets is not None
    loaded = Tokenizer.from_str(json.dumps(json.loads(assets.document)["tokenizer"]))
    tokens, types, scores = (values[f"tokenizer.ggml.{name}"] for name in ("tokens", "token_type", "scores"))
    return loaded, LlamaCppSpm(tokens, types, scores, request.param)


def encode(tokenizer: Tokenizer, text: str) -> list[int]:
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    return ids


@pytest.mark.parametrize("text", CASES)
def test_cases(pair: tuple[Tokenizer, LlamaCppSpm], text: str) -> None:
    loaded, reference = pair
    if reference.add_space_prefix:
        assert [reference.tokens[token_id] for token_id in encode(loaded, text)] == CASES[text]
    assert encode(loaded, text) == reference.encode(text)


@given(st.lists(st.sampled_from([*ADDED, "<s>", " ", "  ", "a", "b", "c", "abc", "é", "漢", "<", "▁"]), max_size=12))
@settings(max_examples=300, deadline=None)
def test_any_text_is_tokenised_as_llama_cpp_does(pair: tuple[Tokenizer, LlamaCppSpm], parts: list[str]) -> None:
    loaded, reference = pair
    text = "".join(parts)
    assert encode(loaded, text) == reference.encode(text)


def test_transformers_gives_the_same_with_the_same_pieces(pair: tuple[Tokenizer, LlamaCppSpm]) -> None:
    """A tokenizer.json as transformers converts Llama's, built here by hand around the merges of this vocabulary."""
    from transformers import PreTrainedTokenizerFast

    loaded, reference = pair
    model = json.loads(loaded.to_str())["model"]
    merges = [tuple(merge) for merge in model["merges"]]
    theirs = Tokenizer(models.BPE(model["vocab"], merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    prepend = [normalizers.Prepend("▁")] if reference.add_space_prefix else []
    theirs.normalizer = normalizers.Sequence([*prepend, normalizers.Replace(" ", "▁")])
    theirs.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    theirs.add_special_tokens([AddedToken(text, normalized=False) for text in ("<unk>", "<s>", "</s>", "<|im_end|>")])
    theirs.add_tokens([AddedToken(text, normalized=False) for text, kind in ADDED.items() if kind == USER_DEFINED])
    fast = PreTrainedTokenizerFast(tokenizer_object=theirs)
    for text in CASES:
        assert encode(loaded, text) == fast(text, add_special_tokens=False)["input_ids"]


def test_control_tokens_can_be_kept_out_of_text_and_those_of_the_user_not(tmp_path: Path) -> None:
    write_gguf(tmp_path / "model.gguf", TinyShape(vocabulary=300), extra=metadata())
    assets = load_model(tmp_path / "model.gguf").tokenizer
    assert assets is not None
    added = json.loads(assets.document)["tokenizer"]["added_tokens"]
    special = {token["content"]: token["special"] for token in added}
    assert special["<|im_end|>"] is special["<s>"] is special["<unk>"] is True
    assert special["<tool>"] is special["été ☃"] is False
    assert not {"<reserved>", "<0x41>", "abc"} & special.keys()

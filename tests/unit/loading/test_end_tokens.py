"""Behind which tokens an answer ends: all that any file states, and those whose spelling says so."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.tiny_models import TinyShape, write_folder, write_gguf
from tests.support.tiny_tokenizers import CONTROL, NORMAL, USER_DEFINED, byte_level_metadata, tokenizer_json

from polyfleet.loading.load import load_model
from polyfleet.loading.model import LoadedModel
from polyfleet.loading.tokenizer.end_tokens import spelled_end_tokens

SHAPE = TinyShape(vocabulary=300)
FIRST = 258  # id of the first token that is added to tokenizer_json()


def document_of(model: LoadedModel) -> dict[str, Any]:
    assert model.tokenizer is not None
    found: dict[str, Any] = json.loads(model.tokenizer.document)
    assert tuple(found["end_token_ids"]) == model.config.end_token_ids
    return found


def folder_with(tmp_path: Path, added: list[str], **files: dict[str, Any]) -> LoadedModel:
    """A folder with these added tokens, whose other files change by stem; none of its tokens is spelled as an end."""
    folder = write_folder(tmp_path / "model", SHAPE)
    text = json.dumps(tokenizer_json()).replace("<|end|>", "<|stop|>")
    content = json.loads(text)
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    content["added_tokens"] += [{"id": FIRST + i, "content": token, **flags} for i, token in enumerate(added)]
    (folder / "tokenizer.json").write_text(json.dumps(content))
    for stem, change in files.items():
        path = folder / f"{stem}.json"
        path.write_text(json.dumps((json.loads(path.read_text()) if path.exists() else {}) | change))
    return load_model(folder)


def gguf_with(tmp_path: Path, token: str, kind: int, **ids: Any) -> LoadedModel:
    """A GGUF file whose token 2 is `token`; `ids` are further keys of its tokenizer."""
    metadata = byte_level_metadata()
    metadata["tokenizer.ggml.tokens"][:3] = ["<|start|>", "<|stop|>", token]
    metadata["tokenizer.ggml.token_type"][2] = kind
    metadata |= {f"tokenizer.ggml.{key}": value for key, value in ids.items()}
    write_gguf(tmp_path / "model.gguf", SHAPE, extra=metadata)
    return load_model(tmp_path / "model.gguf")


def test_a_folder_ends_at_all_that_its_files_state(tmp_path: Path) -> None:
    model = folder_with(
        tmp_path,
        ["<a>", "<b>"],
        config={"eos_token_id": 7},
        generation_config={"eos_token_id": [8, 9]},
        tokenizer_config={"eos_token": "<a>"},
    )
    assert document_of(model)["end_token_ids"] == [8, 9, 7, FIRST]


@pytest.mark.parametrize(
    "files", [{"tokenizer_config": {"eos_token": "<a>"}}, {"special_tokens_map": {"eos_token": "<a>"}}]
)
def test_a_folder_whose_configuration_states_none_ends_at_its_tokenizers(tmp_path: Path, files: dict[str, Any]) -> None:
    model = folder_with(tmp_path, ["<a>"], config={"eos_token_id": None}, **files)
    assert document_of(model)["end_token_ids"] == [FIRST]


@pytest.mark.parametrize("token", ["<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<end_of_turn>", "<|endoftext|>", "</s>"])
def test_a_folder_ends_at_the_end_of_a_turn_that_nothing_states(tmp_path: Path, token: str) -> None:
    assert document_of(folder_with(tmp_path, ["<a>", token]))["end_token_ids"] == [2, FIRST + 1]


def test_spellings_in_plain_text_end_nothing(tmp_path: Path) -> None:
    assert document_of(folder_with(tmp_path, ["<a>"]))["end_token_ids"] == [2]
    assert document_of(gguf_with(tmp_path, "</s>", NORMAL))["end_token_ids"] == [1]


@pytest.mark.parametrize("kind", [NORMAL, CONTROL, USER_DEFINED])
def test_a_turns_end_in_a_gguf_file_is_a_control_token_whatever_its_type(tmp_path: Path, kind: int) -> None:
    document = document_of(gguf_with(tmp_path, "<|im_end|>", kind))
    assert document["end_token_ids"] == [1, 2]
    added = {token["content"]: token["special"] for token in document["tokenizer"]["added_tokens"]}
    assert added["<|im_end|>"] is True


@pytest.mark.parametrize("kind", [CONTROL, USER_DEFINED])
def test_an_end_of_text_in_a_gguf_file_counts_as_an_added_token(tmp_path: Path, kind: int) -> None:
    assert document_of(gguf_with(tmp_path, "</s>", kind))["end_token_ids"] == [1, 2]


def test_all_keys_of_a_gguf_file(tmp_path: Path) -> None:
    keys = {"eot_token_id": 5, "eom_token_id": 6, "eos_token_ids": [7, 5], "eog_token_ids": [8]}
    assert document_of(gguf_with(tmp_path, "<a>", CONTROL, **keys))["end_token_ids"] == [1, 5, 6, 7, 8]


def test_the_end_of_a_message_is_no_end_of_a_turn_in_harmonys_vocabulary() -> None:
    tokens = {"<|return|>": 1, "<|call|>": 2, "<|end|>": 3}
    assert spelled_end_tokens(tokens, tokens) == [1, 2]
    assert spelled_end_tokens({"<|end|>": 3}, {"<|end|>": 3}) == [3]

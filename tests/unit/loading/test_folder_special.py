"""Special tokens of Hugging Face folders: found wherever they are stated, with the ids that transformers gives."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.tiny_models import TinyShape, write_folder, write_gguf
from tests.support.tiny_tokenizers import NORMAL, byte_level_metadata, sentencepiece_metadata, tokenizer_json
from tokenizers import Tokenizer

from polyfleet.loading.load import load_model
from polyfleet.loading.model import LoadedModel, ModelFileError

SHAPE = TinyShape(vocabulary=300)
START, END = "<|start|>", "<|end|>"  # ids 0 and 1
TEXT = {"Sequence": {"id": "A", "type_id": 0}}


def special(name: str) -> dict[str, Any]:
    return {"SpecialToken": {"id": name, "type_id": 0}}


def template(*single: dict[str, Any], **ids: list[int]) -> dict[str, Any]:
    """TemplateProcessing; `ids` are those of special tokens whose names are not their texts."""
    known = {START: [0], END: [1], **ids}
    tokens = {name: {"id": name, "ids": value, "tokens": [name] * len(value)} for name, value in known.items()}
    return {"type": "TemplateProcessing", "single": [*single], "pair": [*single], "special_tokens": tokens}


BOS_FIRST = template(special(START), TEXT)
BERT = {"type": "BertProcessing", "sep": [END, 1], "cls": [START, 0]}
ROBERTA = {"type": "RobertaProcessing", "sep": [END, 1], "cls": [START, 0], "trim_offsets": True}
ROBERTA |= {"add_prefix_space": False}
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True}


def folder_with(tmp_path: Path, processor: Any = BOS_FIRST, **files: dict[str, Any]) -> Path:
    """A model with this post-processor; `files` are further JSON files by stem."""
    folder = write_folder(tmp_path / "model", SHAPE)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_json() | {"post_processor": processor}))
    for stem, content in files.items():
        (folder / f"{stem}.json").write_text(json.dumps(content))
    return folder


def document_of(model: LoadedModel) -> dict[str, Any]:
    assert model.tokenizer is not None
    found: dict[str, Any] = json.loads(model.tokenizer.document)
    return found


def encode(document: dict[str, Any], text: str) -> list[int]:
    """As the gateway encodes raw text."""
    tokenizer = Tokenizer.from_str(json.dumps(document["tokenizer"]))
    ids: list[int] = tokenizer.encode(text).ids
    return tokenizer.encode(document["bos_token"], add_special_tokens=False).ids + ids if document["add_bos"] else ids


def test_bos_of_the_post_processor_alone(tmp_path: Path) -> None:
    document = document_of(load_model(folder_with(tmp_path)))
    assert (document["bos_token"], document["add_bos"]) == (START, True)
    assert document["special_tokens"] == {"bos_token": START}


def test_bos_of_a_post_processor_that_says_it_by_id(tmp_path: Path) -> None:
    document = document_of(load_model(folder_with(tmp_path, template(special("bos"), TEXT, bos=[0]))))
    assert (document["bos_token"], document["add_bos"]) == (START, True)


@pytest.mark.parametrize("none", [None, ""])
def test_bos_that_is_said_to_be_none_is_still_written_before_text(tmp_path: Path, none: Any) -> None:
    settings = {"bos_token": none, "additional_special_tokens": []}
    document = document_of(load_model(folder_with(tmp_path, tokenizer_config=settings)))
    assert document["special_tokens"] == {}
    assert (document["bos_token"], document["add_bos"]) == (None, False)
    assert encode(document, "a")[0] == 0


@pytest.mark.parametrize("value", [START, {"content": START, "lstrip": False}])
def test_bos_of_the_special_tokens_map(tmp_path: Path, value: Any) -> None:
    named = {"bos_token": value, "unk_token": END, "additional_special_tokens": [END, {"content": START}]}
    document = document_of(load_model(folder_with(tmp_path, None, special_tokens_map=named)))
    assert (document["bos_token"], document["add_bos"]) == (START, False)
    expected = {"bos_token": START, "unk_token": END, "additional_special_tokens": [END, START]}
    assert document["special_tokens"] == expected


def test_all_tokens_that_a_template_may_name(tmp_path: Path) -> None:
    names = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token", "image_token")
    settings = dict.fromkeys(names, END) | {"add_bos_token": True, "extra_special_tokens": {"audio_token": START}}
    document = document_of(load_model(folder_with(tmp_path, None, tokenizer_config=settings)))
    assert document["special_tokens"] == dict.fromkeys(names, END) | {"audio_token": START}


@pytest.mark.parametrize(
    "processor",
    [
        None,
        BYTE_LEVEL,
        BOS_FIRST,
        BERT,
        ROBERTA,
        template(special(START), TEXT, special(END)),
        template(TEXT, special(END)),
        template(special(START), special(END), TEXT),
        template(special("both"), TEXT, both=[0, 1]),
        {"type": "Sequence", "processors": [BYTE_LEVEL, BOS_FIRST]},
        {"type": "Sequence", "processors": [BERT, BYTE_LEVEL]},
    ],
)
@pytest.mark.parametrize("named", [{}, {"bos_token": START, "eos_token": END}, {"cls_token": START, "sep_token": END}])
def test_what_stands_around_a_text_is_as_in_transformers(tmp_path: Path, processor: Any, named: dict[str, str]) -> None:
    from transformers import PreTrainedTokenizerFast

    folder = folder_with(tmp_path, processor, tokenizer_config=named)
    theirs = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"), **named)
    document = document_of(load_model(folder))
    for text in ("", "hello"):
        assert encode(document, text) == theirs(text)["input_ids"]


@pytest.mark.parametrize(
    ("add_bos", "add_eos", "around"),
    [(False, False, []), (True, False, [0]), (False, True, [1]), (True, True, [0, 1])],
)
@pytest.mark.parametrize("processor", [None, template(special(START), TEXT, special(END))])
def test_settings_overrule_the_post_processor(
    tmp_path: Path, processor: Any, add_bos: bool, add_eos: bool, around: list[int]
) -> None:
    settings = {"bos_token": START, "eos_token": END, "add_bos_token": add_bos, "add_eos_token": add_eos}
    document = document_of(load_model(folder_with(tmp_path, processor, tokenizer_config=settings)))
    assert encode(document, "") == around


@pytest.mark.parametrize(
    ("processor", "reason"),
    [
        ({"type": "Other"}, "post_processor: the type 'Other' is not supported"),
        ({"type": "Sequence", "processors": [{"type": "Other"}]}, "processors[0]: the type 'Other' is not supported"),
        ({"type": "Sequence", "processors": [BERT, BOS_FIRST]}, "several processors write special tokens"),
        ({"type": "BertProcessing", "sep": [END, 1]}, "post_processor: cls is missing"),
        (template(special("absent"), TEXT), "special_tokens has no entry for 'absent'"),
        (template(special(START)), "single has 0 places for the text, not one"),
        (template(TEXT, TEXT), "single has 2 places for the text, not one"),
        (template({"Other": {}}, TEXT), "which is neither a special token nor a text"),
        (template(special("far"), TEXT, far=[299]), "writes the token id 299, which the vocabulary has not"),
    ],
)
def test_post_processors_that_are_not_understood(tmp_path: Path, processor: Any, reason: str) -> None:
    with pytest.raises(ModelFileError) as caught:
        load_model(folder_with(tmp_path, processor))
    assert reason in str(caught.value)


def test_added_tokens_of_the_tokenizer_config(tmp_path: Path) -> None:
    decoder = {"258": {"content": "<|im_end|>", "special": True}, "259": {"content": "<x>", "normalized": False}}
    folder = folder_with(tmp_path, tokenizer_config={"added_tokens_decoder": decoder, "eos_token": "<|im_end|>"})
    model = load_model(folder)
    document = document_of(model)
    assert encode(document, "<|im_end|><x>") == [0, 258, 259]
    assert {token["content"]: token["special"] for token in document["tokenizer"]["added_tokens"]}["<x>"] is False
    assert model.config.end_token_ids == (2, 258, 1)  # of config.json, the tokenizer's, as spelled


def test_a_named_token_of_the_vocabulary_is_an_added_one(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, None, tokenizer_config={"eos_token": END, "pad_token": "not there"})
    content = json.loads((folder / "tokenizer.json").read_text()) | {"added_tokens": []}
    (folder / "tokenizer.json").write_text(json.dumps(content))
    document = document_of(load_model(folder))
    assert encode(document, END) == [1]
    assert [token["content"] for token in document["tokenizer"]["added_tokens"]] == [END]


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"added_tokens_decoder": {"x": {"content": "a"}}}, "'x' is no token id"),
        ({"added_tokens_decoder": {"258": {}}}, "content is missing"),
        ({"added_tokens_decoder": {"258": {"content": "<x>", "special": 1}}}, "special must be true or false"),
        ({"added_tokens_decoder": {"270": {"content": "<x>"}}}, "'<x>' has the id 270 where 258 would be its place"),
        ({"bos_token": "absent", "add_bos_token": True}, "bos_token 'absent' is not in the vocabulary"),
    ],
)
def test_broken_settings(tmp_path: Path, settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(ModelFileError) as caught:
        load_model(folder_with(tmp_path, tokenizer_config=settings))
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"model": {"type": "Other", "vocab": {"a": 0}}}, "the tokenizer model 'Other' is not supported"),
        ({"normalizer": {"type": "Other"}}, "normalizer: the type 'Other' is not supported"),
        ({"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Other"}]}}, "the type 'Other'"),
        ({"decoder": {"type": "Sequence", "decoders": ["x"]}}, "decoders[0] must be an object"),
    ],
)
def test_parts_of_unknown_types(tmp_path: Path, change: dict[str, Any], reason: str) -> None:
    folder = folder_with(tmp_path)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_json() | change))
    with pytest.raises(ModelFileError) as caught:
        load_model(folder)
    assert reason in str(caught.value)


def test_special_tokens_of_a_gguf_file(tmp_path: Path) -> None:
    ids = {"padding": 1, "unknown": 0, "seperator": 1, "mask": 2**32 - 1}
    extra = {f"tokenizer.ggml.{name}_token_id": token_id for name, token_id in ids.items()}
    extra["tokenizer.ggml.add_eos_token"] = True
    write_gguf(tmp_path / "model.gguf", SHAPE, extra=byte_level_metadata() | extra)
    document = document_of(load_model(tmp_path / "model.gguf"))
    expected = {"bos_token": START, "eos_token": END, "pad_token": END, "unk_token": START, "sep_token": END}
    assert document["special_tokens"] == expected
    assert encode(document, "")[-1:] == [1]


def test_first_and_last_token_of_a_gguf_file_are_control_tokens_whatever_their_types(tmp_path: Path) -> None:
    metadata = byte_level_metadata()
    metadata["tokenizer.ggml.token_type"] = [NORMAL] * len(metadata["tokenizer.ggml.tokens"])
    write_gguf(tmp_path / "model.gguf", SHAPE, extra=metadata)
    document = document_of(load_model(tmp_path / "model.gguf"))
    added = document["tokenizer"]["added_tokens"]
    assert [(token["content"], token["special"]) for token in added] == [(START, True), (END, True)]


def test_merges_are_never_left_to_chance(tmp_path: Path) -> None:
    folder = folder_with(tmp_path)
    content = tokenizer_json()
    content["model"]["dropout"] = 0.5
    (folder / "tokenizer.json").write_text(json.dumps(content))
    assert document_of(load_model(folder))["tokenizer"]["model"]["dropout"] is None


def test_sentencepiece_names_that_a_gguf_file_leaves_out(tmp_path: Path) -> None:
    metadata = {key: value for key, value in sentencepiece_metadata().items() if not key.endswith("_token_id")}
    write_gguf(tmp_path / "model.gguf", SHAPE, extra=metadata)
    document = document_of(load_model(tmp_path / "model.gguf"))
    assert document["special_tokens"] == {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    assert document["add_bos"] is True


@pytest.mark.parametrize("name", ["bos", "eos"])
def test_a_gguf_file_that_adds_a_token_it_has_not(tmp_path: Path, name: str) -> None:
    metadata = byte_level_metadata() | {f"tokenizer.ggml.add_{name}_token": True}
    del metadata[f"tokenizer.ggml.{name}_token_id"]
    write_gguf(tmp_path / "model.gguf", SHAPE, extra=metadata)
    with pytest.raises(ModelFileError, match=f"add_{name}_token is true, but"):
        load_model(tmp_path / "model.gguf")

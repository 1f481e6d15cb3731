"""Folders that are no model that can be served: one sentence names the culprit."""

import json
import logging
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.support.small_config import SMALL
from tests.support.tiny_models import TinyShape, random_tensors, write_folder
from tests.support.tiny_tokenizers import tokenizer_json

from polyfleet.kernels.weights.quantisation import CHUNK_WEIGHTS
from polyfleet.kernels.weights.weight import Weight, WeightFormat
from polyfleet.loading.load import load_model
from polyfleet.loading.model import ModelFileError
from polyfleet.loading.placing import place_all
from polyfleet.loading.shapes import check_numbers
from polyfleet.models.llama import LLAMA

SHAPE = TinyShape()


def stated(folder: Path, change: dict[str, Any]) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    return folder


def refused(folder: Path) -> str:
    with pytest.raises(ModelFileError) as caught:
        load_model(folder)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("number", [np.nan, np.inf])
@pytest.mark.parametrize(("tensor", "name"), [("norm.weight", "norm"), ("layers.1.mlp.up_proj.weight", "layers.1.up")])
def test_numbers_that_are_not_finite(tmp_path: Path, tensor: str, name: str, number: float) -> None:
    tensors = random_tensors(SHAPE)
    tensors[f"model.{tensor}"].flat[3] = number
    folder = write_folder(tmp_path / "model", SHAPE, tensors)
    assert f"the tensor for '{name}' holds numbers that are not finite" in refused(folder)


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("Phi3SmallForCausalLM", "Phi3ForCausalLM, "),
        ("Gemma3TextModel", "Gemma3ForCausalLM, GemmaForCausalLM, Gemma2ForCausalLM "),
        ("XLMRobertaXLModel", "XLMRobertaModel, "),
        ("Falcon3DModel", "FalconForCausalLM, "),
    ],
)
def test_unknown_architectures_name_the_nearest_that_are_known(tmp_path: Path, name: str, nearest: str) -> None:
    folder = stated(write_folder(tmp_path / "model", SHAPE), {"architectures": [name], "model_type": "other"})
    message = refused(folder)
    assert f"the architecture {name} is not supported; the nearest that are: {nearest}" in message
    assert message.count(", ") == 2
    assert message.endswith(" (docs/models.md lists all)")


@pytest.mark.parametrize(
    ("kinds", "model_type", "problem"),
    [
        (None, None, "names neither architectures nor a model_type"),
        ([], "exaone9", "the architecture exaone9 is not supported"),
        (
            ["MistralForCausalLM"],
            "exaone",
            "names MistralForCausalLM, but model_type 'exaone' is that of ExaoneForCausalLM",
        ),
        (
            ["LlamaForCausalLM", "MistralForCausalLM"],
            None,
            "names several models (LlamaForCausalLM, MistralForCausalLM)",
        ),
        (["OwnModel", "Qwen2ForCausalLM"], "llama", "model_type 'llama' is that of LlamaForCausalLM"),
    ],
)
def test_what_a_model_is_has_to_be_stated_without_contradiction(
    tmp_path: Path, kinds: list[str] | None, model_type: str | None, problem: str
) -> None:
    folder = stated(write_folder(tmp_path / "model", SHAPE), {"architectures": kinds, "model_type": model_type})
    assert problem in refused(folder)


@pytest.mark.parametrize(
    ("kinds", "model_type"),
    [
        (None, "llama"),
        ([], "llama"),
        (["LlamaForCausalLM"], None),
        (["LlamaForCausalLM"], "own"),  # which nobody knows
        (["OwnForCausalLM", "LlamaForCausalLM"], "llama"),
        (["MistralForCausalLM", "LlamaForCausalLM"], "llama"),  # both agree on one of them
        (["LlamaModel", "LlamaForCausalLM"], None),
    ],
)
def test_what_a_model_is_is_found_by_all_that_is_stated(
    tmp_path: Path, kinds: list[str] | None, model_type: str | None
) -> None:
    folder = stated(write_folder(tmp_path / "model", SHAPE), {"architectures": kinds, "model_type": model_type})
    config = load_model(folder).config
    assert (config.architecture, config.embeds_only) == ("llama", False)


def test_code_of_a_folder_is_never_executed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    code = {"auto_map": {"AutoModelForCausalLM": "modeling.Own"}}
    folder = stated(write_folder(tmp_path / "model", SHAPE), code)
    (folder / "modeling.py").write_text("raise SystemExit('executed')")
    with caplog.at_level(logging.WARNING):
        load_model(folder)
    assert "the code that auto_map names is never executed" in caplog.text
    assert "is never executed" in refused(stated(folder, {"architectures": ["OwnForCausalLM"]}))


def test_vocabulary_larger_than_the_embedding(tmp_path: Path) -> None:
    folder = stated(write_folder(tmp_path / "model", SHAPE), {"vocab_size": SHAPE.vocabulary + 8})
    assert "the tensor for 'embedding' is 96 x 64, the configuration says 104 x 64" in refused(folder)


@pytest.mark.parametrize(
    ("kind", "change", "key"),
    [
        ("Gemma2ForCausalLM", {"hidden_activation": "relu"}, "the activation 'relu'"),
        ("Qwen3ForCausalLM", {"layer_types": ["full_attention", "chunked_attention"]}, "layer_types"),
        ("SmolLM3ForCausalLM", {"no_rope_layers": [1]}, "no_rope_layers"),
        ("Qwen3_5MoeForCausalLM", {"norm_topk_prob": False}, "norm_topk_prob"),
        ("MistralForCausalLM", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
        ("Glm4ForCausalLM", {"partial_rotary_factor": 1.5, "rope_parameters": None}, "partial_rotary_factor"),
    ],
)
def test_keys_that_an_architecture_does_not_know(tmp_path: Path, kind: str, change: dict[str, Any], key: str) -> None:
    folder = stated(write_folder(tmp_path / "model", SHAPE), {"architectures": [kind], "model_type": None, **change})
    assert key in refused(folder)


YARN = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 64}


@pytest.mark.parametrize(
    "change",
    [
        {"num_hidden_layers": 2_000_000_000},
        {"rope_theta": 10**400},
        {"logit_scale": 10**400},
        {"rope_theta": 1.0, "rope_scaling": YARN},
        {"rope_scaling": YARN | {"factor": 1e308}},
        {"rope_scaling": YARN | {"original_max_position_embeddings": 0.5}},
    ],
)
def test_numbers_beyond_all_models_are_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    assert "config.json" in refused(stated(write_folder(tmp_path / "model", SHAPE), change))


def test_an_output_that_is_not_the_embedding_that_it_is_said_to_be(tmp_path: Path) -> None:
    tensors = random_tensors(SHAPE)
    folder = stated(write_folder(tmp_path / "model", SHAPE, tensors), {"tie_word_embeddings": True})
    assert "'lm_head.weight' differs from the embedding, which tie_word_embeddings says it is" in refused(folder)
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
    load_model(stated(write_folder(tmp_path / "same", SHAPE, tensors), {"tie_word_embeddings": True}))
    del tensors["lm_head.weight"]
    folder = stated(write_folder(tmp_path / "without", SHAPE, tensors), {"tie_word_embeddings": False})
    assert "the tensor for 'lm_head' is missing" in refused(folder)


def test_a_vocabulary_that_is_larger_than_the_embedding(tmp_path: Path) -> None:
    """That of the configuration, and that of the tokenizer."""
    larger = stated(write_folder(tmp_path / "model", SHAPE), {"vocab_size": SHAPE.vocabulary + 4})
    assert "the tensor for 'embedding' is 96 x 64, the configuration says 100 x 64" in refused(larger)
    folder = write_folder(tmp_path / "other", SHAPE)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_json()))
    assert "token id 257 is outside the model's vocabulary of 96" in refused(folder)


@pytest.mark.parametrize(
    ("merge", "reason"),
    [
        ("zz qq", "merges holds 'zz qq', which joins no two tokens into a third"),
        (["a", "b"], r"merges holds ['a', 'b'], which joins no two tokens into a third"),
        ("abc", "merges holds 'abc', which is no pair of tokens"),
        (3, "merges holds 3, which is no pair of tokens"),
    ],
)
def test_merges_of_what_is_no_token(tmp_path: Path, merge: Any, reason: str) -> None:
    """The tokenizers library refuses them, where the model would serve already."""
    folder, content = write_folder(tmp_path, TinyShape(vocabulary=300)), tokenizer_json()
    content["model"]["merges"] = [merge]
    (folder / "tokenizer.json").write_text(json.dumps(content))
    assert reason in refused(folder)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes")
def test_a_pipe_in_the_place_of_weights_is_not_waited_for(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, SHAPE)
    (folder / "model.safetensors").unlink()
    os.mkfifo(folder / "model.safetensors")
    assert refused(folder) == f"{folder / 'model.safetensors'}: is no file"


@pytest.mark.parametrize(("tensor", "drafts"), [("mlp.up_proj", False), ("eh_proj", True)])
def test_layers_behind_the_model_that_do_not_draft(tensor: str, drafts: bool) -> None:
    """A layer that has nothing to draft with is none that drafts, whatever the configuration says of their number."""
    config = replace(SMALL, draft_layers=1)
    name = f"model.layers.{config.num_layers}.{tensor}.weight"
    weights = place_all([Weight(name, WeightFormat.F32, 2, 2, torch.zeros(2, 2))], LLAMA.folder_names, config)
    assert weights.keys() == (set() if drafts else {f"unknown.{name}"})


@pytest.mark.parametrize(("row", "number", "finite"), [(0, np.nan, False), (-1, np.inf, False), (-1, 3e38, True)])
def test_numbers_of_large_matrices(row: int, number: float, finite: bool) -> None:
    """They are summed part by part; finite ones may sum up to more than a float holds."""
    data = torch.zeros(3, CHUNK_WEIGHTS // 2, dtype=torch.bfloat16)
    data[row, :2] = number
    weights = {"embedding": Weight("embedding", WeightFormat.BF16, len(data), data.shape[1], data)}
    if finite:
        return check_numbers("model", weights)
    with pytest.raises(ModelFileError, match="the tensor for 'embedding' holds numbers that are not finite"):
        check_numbers("model", weights)


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the system tells no peak of memory")
def test_numbers_are_looked_at_without_a_copy_of_them() -> None:
    """Of an embedding in half precision the copy would take twice its memory."""
    data = torch.zeros(1, 1 << 15, dtype=torch.bfloat16).expand(1 << 12, -1)
    weights = {"embedding": Weight("embedding", WeightFormat.BF16, len(data), data.shape[1], data)}
    Path("/proc/self/clear_refs").write_text("5")
    before = _peak()
    check_numbers("model", weights)
    assert _peak() - before < data.numel(), "bytes: a quarter of the copy"


def _peak() -> int:
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found
    return int(found[1]) * 1024

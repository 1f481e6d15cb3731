"""Folders that are no model that can be served: one sentence names the culprit."""

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.tiny_models import TinyShape, random_tensors, write_folder

from polyfleet.loading.load import load_model
from polyfleet.loading.model import ModelFileError

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
    [("Phi3SmallForCausalLM", "Phi3ForCausalLM"), ("GemmaForCausalLM", "Gemma2ForCausalLM"), ("FalconModel", "")],
)
def test_unknown_architectures_name_those_that_are_known(tmp_path: Path, name: str, nearest: str) -> None:
    folder = stated(write_folder(tmp_path / "model", SHAPE), {"architectures": [name], "model_type": "other"})
    message = refused(folder)
    assert f"the architecture {name} is not supported (supported: LlamaForCausalLM, " in message
    assert f"; the nearest is {nearest}" in message


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
        ("MistralForCausalLM", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
        ("Glm4ForCausalLM", {"partial_rotary_factor": 1.5, "rope_parameters": None}, "partial_rotary_factor"),
    ],
)
def test_keys_that_an_architecture_does_not_know(tmp_path: Path, kind: str, change: dict[str, Any], key: str) -> None:
    folder = stated(write_folder(tmp_path / "model", SHAPE), {"architectures": [kind], **change})
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

"""PEFT folders: what is read from them, and a sentence for each that can't be used."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.peft_folders import PREFIX, low_rank_tensors, write_adapter
from tests.support.tiny_models import TinyShape, random_tensors, write_folder, write_gguf

from polyfleet.graph.adapt import adaptable
from polyfleet.loading.adapter import Adapter, load_adapter
from polyfleet.loading.load import load_model
from polyfleet.models.errors import ModelFileError
from polyfleet.models.registry import record

SHAPE = TinyShape(layers=1)
BASE = random_tensors(SHAPE)
TENSORS = low_rank_tensors(BASE, rank=4)
Q, DOWN = "model.layers.0.self_attn.q_proj", "model.layers.0.mlp.down_proj"
A, B = f"{PREFIX}{Q}.lora_A.weight", f"{PREFIX}{Q}.lora_B.weight"
Load = Callable[..., Adapter]


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Load:
    model = load_model(write_folder(tmp_path_factory.mktemp("base"), SHAPE, BASE))
    names = adaptable(record(model.config, model.weights))
    return lambda folder, most=8: load_adapter(folder, model.config, names, most)


def test_every_linear_of_a_layer(load: Load, tmp_path: Path) -> None:
    adapter = load(write_adapter(tmp_path, TENSORS))
    assert set(adapter.parts) == {f"layers.0.{name}" for name in ("q", "k", "v", "o", "gate", "up", "down")}
    assert adapter.rank == 4
    part = adapter.parts["layers.0.q"]
    np.testing.assert_array_equal(part.down.numpy(), TENSORS[A])
    np.testing.assert_array_equal(part.up.numpy(), TENSORS[B] * 2.0)
    assert adapter.fingerprint == load(tmp_path).fingerprint
    other = load(write_adapter(tmp_path / "other", {**TENSORS, B: TENSORS[B] * 1.5}))
    assert other.fingerprint != adapter.fingerprint


@pytest.mark.parametrize(
    ("config", "scale"),
    [
        ({"lora_alpha": 8}, 2.0),
        ({"lora_alpha": 8, "use_rslora": True}, 4.0),
        ({"lora_alpha": 8, "alpha_pattern": {"q_proj": 2}}, 0.5),
        ({"lora_alpha": 8, "alpha_pattern": {r"layers\.[01]\.self_attn\.q_proj": 2.0}}, 0.5),
        ({"lora_alpha": 8, "alpha_pattern": {"proj": 2, "layers.1.self_attn.q_proj": 3}}, 2.0),
        ({"lora_alpha": 8, "target_modules": "all-linear", "r": 9, "rank_pattern": {".*proj": 4}}, 2.0),
        ({"lora_alpha": 8, "target_modules": r".*\.(q|k)_proj", "base_model_name_or_path": None}, 2.0),
    ],
)
def test_scales(config: dict[str, Any], scale: float, load: Load, tmp_path: Path) -> None:
    up = load(write_adapter(tmp_path, TENSORS, **config)).parts["layers.0.q"].up
    np.testing.assert_allclose(up.numpy(), TENSORS[B] * scale, rtol=1e-6)


def test_names_with_the_adapters_own_and_without_the_head(load: Load, tmp_path: Path) -> None:
    named = {name.replace(".weight", ".default.weight"): each for name, each in TENSORS.items()}
    headless = {name.replace("model.layers", "layers"): each for name, each in TENSORS.items()}
    prints = [load(write_adapter(tmp_path / f"{len(each)}", each)).fingerprint for each in (named, TENSORS)]
    assert prints == [load(write_adapter(tmp_path / "headless", headless)).fingerprint] * 2


def test_a_gguf_file_of_the_model_takes_the_same(load: Load, tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", SHAPE)
    model = load_model(tmp_path / "m.gguf")
    folder = write_adapter(tmp_path / "a", TENSORS)
    adapter = load_adapter(folder, model.config, adaptable(record(model.config, model.weights)), 4)
    assert adapter.fingerprint == load(folder).fingerprint


def without(name: str) -> dict[str, Any]:
    return {key: each for key, each in TENSORS.items() if key != name}


NAN = np.full_like(TENSORS[A], np.nan)
WIDE = {A: np.ones((4, 99), np.float32), B: TENSORS[B]}


@pytest.mark.parametrize(
    ("tensors", "config", "reason"),
    [
        (TENSORS, {"peft_type": "IA3"}, "an adapter of the type 'IA3' is not supported, only LORA"),
        (TENSORS, {"use_dora": True}, "DoRA is not supported"),
        (TENSORS, {"bias": "lora_only"}, "trained biases (bias 'lora_only') are not supported beside LoRA"),
        (TENSORS, {"modules_to_save": ["lm_head"]}, "modules trained as a whole (modules_to_save) are not supported"),
        (TENSORS, {"trainable_token_indices": [1]}, "trained tokens (trainable_token_indices) are not supported"),
        (TENSORS, {"init_lora_weights": "pissa_niter_4"}, "a base whose weights were changed for it"),
        (TENSORS, {"r": 0}, "r must be 1 to"),
        (TENSORS, {"r": "4"}, "r must be a whole number, not '4'"),
        (TENSORS, {"lora_alpha": "much"}, "lora_alpha of 'model.layers.0.mlp.down_proj' must be a finite number"),
        *((TENSORS, {"lora_alpha": each}, "must be a finite number") for each in (math.inf, math.nan, 10**400)),
        (TENSORS, {"lora_alpha": 1e45}, "is 1e+45, which takes its numbers out of range"),
        (TENSORS, {"rank_pattern": {"q_proj": 2}}, f"says rank 2 of '{Q}', the file has 4"),
        (TENSORS, {"alpha_pattern": {"(": 2}}, "alpha_pattern has '(', which is no regular expression"),
        (TENSORS, {"alpha_pattern": [1]}, "alpha_pattern must be an object"),
        (low_rank_tensors(BASE, rank=9), {}, f"the rank of '{DOWN}' is 9, this deployment takes up to 8 (max_rank)"),
        (without(A), {}, f"lora_A of '{Q}' is missing"),
        (without(B), {}, f"lora_B of '{Q}' is missing"),
        ({**TENSORS, A: NAN}, {}, f"tensor '{A}' holds numbers that are not finite"),
        ({**TENSORS, A: TENSORS[A][:2].copy()}, {}, f"lora_A and lora_B of '{Q}' are 2 x "),
        ({**TENSORS, A: TENSORS[A].astype(np.int32)}, {}, "is int32 [4, "),
        (
            WIDE,
            {"base_model_name_or_path": "org/Other"},
            f"'{Q}' is adapted as 64 x 99, the model's is 64 x 64 (it was",
        ),
        (
            {A.replace(".0.", ".7."): TENSORS[A], B.replace(".0.", ".7."): TENSORS[B]},
            {},
            "the model has no 'model.layers.7",
        ),
        (
            {f"{PREFIX}lm_head.lora_{s}.weight": np.ones((4, 4), np.float32) for s in "AB"},
            {},
            "'lm_head' can't be adapted, only linears inside layers can",
        ),
        ({f"{PREFIX}model.embed_tokens.lora_embedding_A": TENSORS[A]}, {}, "an adapted embedding"),
        ({**TENSORS, f"{PREFIX}{Q}.lora_magnitude_vector": TENSORS[A]}, {}, "DoRA"),
        ({**TENSORS, f"{PREFIX}{Q}.bias": TENSORS[A]}, {}, "is no matrix of LoRA"),
        ({}, {}, "holds no matrices"),
    ],
)
def test_a_sentence_for_what_is_no_adapter_of_the_model(
    tensors: dict[str, Any], config: dict[str, Any], reason: str, load: Load, tmp_path: Path
) -> None:
    with pytest.raises(ModelFileError) as raised:
        load(write_adapter(tmp_path, tensors, **config))
    assert reason in str(raised.value)
    assert str(raised.value).startswith(str(tmp_path))
    assert str(raised.value).count(str(tmp_path)) == 1
    assert "\n" not in str(raised.value)


def test_folders_that_are_none(load: Load, tmp_path: Path) -> None:
    def reason(folder: Path) -> str:
        with pytest.raises(ModelFileError) as raised:
            load(folder)
        return str(raised.value)

    assert "there is no such folder" in reason(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    assert "no adapter_config.json, so it is no adapter" in reason(tmp_path / "empty")
    folder = write_adapter(tmp_path / "pickled", TENSORS)
    (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin")
    assert "pickle file (adapter_model.bin), which could run code; use safetensors" in reason(folder)
    (folder / "adapter_model.bin").unlink()
    assert "the folder has no adapter_model.safetensors" in reason(folder)
    (folder / "adapter_model.safetensors").write_bytes(b"\xff" * 32)
    assert "truncated or corrupt" in reason(folder)
    (folder / "adapter_config.json").write_text(json.dumps([]))
    assert "adapter_config.json" in reason(folder)


def test_another_base_is_told_of(load: Load, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Of the same shapes it may be the same model by another name."""
    load(write_adapter(tmp_path, TENSORS, base_model_name_or_path="org/Elephant-7B"))
    assert "was trained for 'org/Elephant-7B'" in caplog.text

"""Fingerprints: equal for equal models wherever they lie, other for whatever gives other tokens."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.support.tiny_models import TinyShape, random_tensors, write_folder, write_gguf
from tests.support.tiny_tokenizers import byte_level_metadata, tokenizer_json

from polyfleet.kernels.weights.weight import Weight, WeightFormat
from polyfleet.loading.fingerprint import SAMPLE_BYTES, SAMPLES, WHOLE_BYTES, fingerprint
from polyfleet.loading.load import load_model

SHAPE = TinyShape(vocabulary=264)


def of(path: Path) -> str:
    return fingerprint(load_model(path))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = write_folder(tmp_path / "one", SHAPE)
    (made / "tokenizer.json").write_text(json.dumps(tokenizer_json()))
    return made


def test_copies_elsewhere_are_equal(folder: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / "deeper" / "other-name"))
    assert of(folder) == of(copy)
    assert len(of(folder)) == 32
    sharded = write_folder(tmp_path / "sharded", SHAPE, num_shards=3)
    shutil.copy(folder / "tokenizer.json", sharded)
    assert of(sharded) == of(folder)


def change_config(folder: Path, **values: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | values))


def change_tokenizer(folder: Path) -> None:
    tokenizer = tokenizer_json()
    tokenizer["normalizer"] = {"type": "NFC"}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))


def train(folder: Path, name: str) -> None:
    tensors = random_tensors(SHAPE)
    tensors[name] = tensors[name] + np.float32(1e-3)
    write_folder(folder, SHAPE, tensors)


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: change_config(folder, rms_norm_eps=1e-6),
        lambda folder: change_config(folder, rope_parameters={"rope_type": "default", "rope_theta": 5e5}),
        lambda folder: change_config(folder, eos_token_id=3),
        change_tokenizer,
        lambda folder: (folder / "tokenizer.json").unlink(),
        lambda folder: train(folder, "lm_head.weight"),
        lambda folder: train(folder, "model.layers.1.mlp.up_proj.weight"),
        lambda folder: train(folder, "model.norm.weight"),
    ],
)
def test_what_gives_other_tokens_is_another_model(folder: Path, change: Any) -> None:
    before = of(folder)
    change(folder)
    assert of(folder) != before


def test_another_quantisation_is_another_model(tmp_path: Path) -> None:
    prints = set()
    for form in ("F32", "F16", "Q8_0", "Q4_0"):
        path = tmp_path / f"{form}.gguf"
        write_gguf(path, SHAPE, form, extra=byte_level_metadata())
        prints.add(of(path))
    assert len(prints) == 4


def test_of_a_large_weight_a_sample_is_read_that_includes_both_ends(folder: Path) -> None:
    model = load_model(folder)
    data = torch.zeros(64, WHOLE_BYTES, dtype=torch.uint8)

    def with_weight(data: torch.Tensor) -> str:
        weight = Weight("x", WeightFormat.Q8_0, data.shape[0], data.shape[1], data)
        return fingerprint(replace(model, weights={"x": weight}))

    before, size = with_weight(data), data.numel()
    seen = 0
    for place in (0, SAMPLE_BYTES - 1, size // 3, size // 2, size - SAMPLE_BYTES, size - 1):
        changed = data.clone()
        changed.view(-1)[place] = 1
        seen += with_weight(changed) != before
    assert seen >= 4
    assert SAMPLES * SAMPLE_BYTES < WHOLE_BYTES
    scaled = data.clone() + 1
    assert with_weight(scaled) != before

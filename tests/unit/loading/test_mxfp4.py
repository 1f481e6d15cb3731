"""MXFP4, of GGUF files and of folders, against the package `gguf`."""

import json
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from tests.support.tiny_architectures import TINY, make
from tests.support.tiny_kinds import LAYERS

from polyfleet.kernels.weights.quantisation import dequantise
from polyfleet.kernels.weights.weight import Weight, WeightFormat
from polyfleet.loading.load import load_model
from polyfleet.loading.model import ModelFileError
from polyfleet.loading.quantised import mxfp4

MXFP4 = gguf.GGMLQuantizationType.MXFP4
BYTES = 17  # of a block


def random_rows(rows: int, blocks: int) -> NDArray[np.uint8]:
    """As a GGUF file has them."""
    random = np.random.default_rng(6)
    data = random.integers(0, 256, (rows, blocks, BYTES), dtype=np.uint8)
    data[..., 0] = random.integers(0, 250, (rows, blocks))
    return data.reshape(rows, -1)


def as_folder(rows: NDArray[np.uint8]) -> tuple[torch.Tensor, torch.Tensor]:
    """The same as blocks and scales: neighbours share a byte."""
    blocks = rows.reshape(len(rows), -1, BYTES)
    low, high = blocks[..., 1:] & 15, blocks[..., 1:] >> 4
    codes = np.concatenate((low, high), axis=-1)
    return torch.from_numpy(codes[..., ::2] | codes[..., 1::2] << 4), torch.from_numpy(blocks[..., 0].copy())


def test_numbers_are_those_of_gguf() -> None:
    rows = random_rows(50, 3)
    found = Weight("w", WeightFormat.MXFP4, 50, 96, torch.from_numpy(rows))
    np.testing.assert_array_equal(dequantise(found, torch.float32).numpy(), gguf.quants.dequantize(rows, MXFP4))
    blocks, scales = as_folder(rows)
    other = mxfp4.of_folder("w", blocks[None], scales[None])
    assert (other.rows, other.columns) == (50, 96)
    torch.testing.assert_close(other.data, found.data, rtol=0, atol=0)


def test_a_block_that_is_no_number_is_refused() -> None:
    rows = random_rows(2, 2)
    rows[1, 0] = 255
    with pytest.raises(ValueError, match="'w' holds numbers that are not finite"):
        dequantise(Weight("w", WeightFormat.MXFP4, 2, 64, torch.from_numpy(rows)), torch.float32)


def packed_folder(folder: Path) -> dict[str, NDArray[np.float32]]:
    """gpt-oss with its experts in MXFP4; gives what they stand for, by name [experts, rows, columns]."""
    make(TINY["gpt-oss"], folder)
    tensors, wide = load_file(folder / "model.safetensors"), dict[str, NDArray[np.float32]]()
    for name in [
        each for each in tensors if each.endswith("experts.gate_up_proj") or each.endswith("experts.down_proj")
    ]:
        stack = tensors.pop(name).mT.contiguous().numpy()
        rows = gguf.quants.quantize(stack.reshape(-1, stack.shape[2]), MXFP4)
        wide[name] = gguf.quants.dequantize(rows, MXFP4).reshape(stack.shape)
        blocks, scales = as_folder(rows)
        tensors[f"{name}_blocks"] = blocks.reshape(*stack.shape[:2], -1, 16)
        tensors[f"{name}_scales"] = scales.reshape(*stack.shape[:2], -1)
    save_file(tensors, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}
    (folder / "config.json").write_text(json.dumps(config))
    return wide


def test_a_folder_whose_experts_are_packed(tmp_path: Path) -> None:
    wide = packed_folder(tmp_path / "model")
    weights = load_model(tmp_path / "model").weights
    for layer in range(LAYERS):
        both = wide[f"model.layers.{layer}.mlp.experts.gate_up_proj"]
        parts = {"gate": both[:, ::2], "up": both[:, 1::2], "down": wide[f"model.layers.{layer}.mlp.experts.down_proj"]}
        for name, expected in parts.items():
            found = dequantise(weights[f"layers.{layer}.experts.{name}"], torch.float32).numpy()
            np.testing.assert_array_equal(found, expected.reshape(found.shape))


def test_blocks_without_scales_are_refused(tmp_path: Path) -> None:
    packed_folder(tmp_path / "model")
    path = tmp_path / "model" / "model.safetensors"
    tensors = load_file(path)
    del tensors["model.layers.1.mlp.experts.down_proj_scales"]
    save_file(tensors, path)
    with pytest.raises(
        ModelFileError, match=r"'model.layers.1.mlp.experts.down_proj_blocks' has no tensor that ends in _scales"
    ):
        load_model(tmp_path / "model")

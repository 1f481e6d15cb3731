"""Folders whose weights are quantised: what they stand for, in what they stay, and what is wrong with them."""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.support.quantised_folders import SHAPE, WAYS, Stored, write_quantised

from polyfleet.kernels.weights.quantisation import dequantise
from polyfleet.loading.load import load_model
from polyfleet.loading.model import ModelFileError

NAMES = {"self_attn.q_proj": "q", "self_attn.o_proj": "o", "mlp.gate_proj": "gate", "mlp.down_proj": "down"}


@pytest.mark.parametrize("name", list(WAYS))
def test_numbers_are_those_that_were_written(name: str, tmp_path: Path) -> None:
    expected = write_quantised(tmp_path / "model", WAYS[name])
    weights = load_model(tmp_path / "model").weights
    rough = 2.0**-11 if WAYS[name].form == "F16" else 1e-6  # products of two numbers of half precision
    for theirs, ours in NAMES.items():
        weight = weights[f"layers.0.{ours}"]
        assert weight.format == WAYS[name].form
        found, wanted = dequantise(weight, torch.float32).numpy(), expected[f"model.layers.0.{theirs}.weight"]
        np.testing.assert_allclose(found, wanted, rtol=rough, atol=1e-8 if rough < 1e-4 else 1e-7)


def test_what_no_kernel_has_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_quantised(tmp_path / "model", WAYS["gptq in another order"])
    with caplog.at_level(logging.WARNING):
        load_model(tmp_path / "model")
    assert "7 of 7 gptq weights are dequantised, as no kernel has such groups: model.layers.0.mlp.down" in caplog.text


def changed(folder: Path, way: str, config: dict[str, Any], change: Callable[[Stored], Any] = lambda _: None) -> str:
    """What is said of a model that is written in this way, then changed."""
    write_quantised(folder, WAYS[way])
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")
    stated = dict(WAYS[way].config) | config
    (folder / "config.json").write_text(json.dumps(SHAPE.config() | {"quantization_config": stated}))
    with pytest.raises(ModelFileError) as caught:
        load_model(folder)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("way", "config", "problem"),
    [
        ("gptq", {"quant_method": "bitsandbytes"}, "bitsandbytes quantises with tables of its own while it loads"),
        ("gptq", {"quant_method": "aqlm"}, "'aqlm' is not supported in folders (supported: fp8, fbgemm_fp8"),
        ("gptq", {"bits": 3}, "bits 3 is not supported (supported: 4, 8)"),
        ("gptq", {"bits": None}, "bits None is not supported (supported: 4, 8)"),
        ("gptq", {"checkpoint_format": "marlin"}, "checkpoint_format 'marlin' is not supported (supported: gptq,"),
        ("gptq", {"dynamic": {"+:.*down.*": {"bits": 8}}}, "dynamic gives some modules a quantisation of their own"),
        ("gptq", {"rotation": "hadamard"}, "rotation = 'hadamard' is not understood: it may change what the weights"),
        ("gptq", {"group_size": 64}, "down_proj.qweight' has scales of 6 groups, the configuration says 3"),
        ("awq", {"version": "gemv"}, "version 'gemv' is not supported (supported: gemm, GEMM)"),
        ("awq", {"bits": 8}, "bits 8 is not supported (supported: 4)"),
        ("fp8 tiles", {"fmt": "e5m2"}, "fmt 'e5m2' is not supported (supported: e4m3, float8_e4m3fn)"),
        ("fp8 tiles", {"weight_block_size": [64, 64]}, "has 2 x 2 scales, tiles of 64 x 64 need 3 x 3"),
        ("fp8 tiles", {"weight_block_size": [128]}, "weight_block_size must be two whole numbers over 0, not [128]"),
        ("int4 groups", {"format": "nvfp4-pack-quantized"}, "format 'nvfp4-pack-quantized' is not supported"),
        ("int4 groups", {"transform_config": {"a": 1}}, "transform_config is not supported"),
        ("int4 groups", {"sparsity_config": {"format": "sparse-24-bitmask"}}, "sparsity_config is not supported"),
        ("int4 groups", {"config_groups": {}}, "is quantised, and no target of config_groups names it"),
    ],
)  # fmt: skip
def test_configurations_that_are_not_understood(way: str, config: dict[str, Any], problem: str, tmp_path: Path) -> None:
    assert problem in changed(tmp_path / "model", way, config)


Q = "model.layers.0.self_attn.q_proj"


@pytest.mark.parametrize(
    ("way", "problem", "change"),
    [
        ("gptq", f"'{Q}.qweight' has no tensor that ends in .scales", lambda each: each.pop(f"{Q}.scales")),
        ("awq", f"'{Q}.qweight' has no tensor that ends in .qzeros", lambda each: each.pop(f"{Q}.qzeros")),
        ("gptq", f"'{Q}.qweight' has scales that are not finite", lambda each: each[f"{Q}.scales"][0].fill_(torch.inf)),
        ("gptq", f"'{Q}.qweight' has groups of columns that are not 160 numbers of 0 ... 4",
         lambda each: each[f"{Q}.g_idx"].fill_(7)),
        ("gptq", "has codes of int64 in 2 dimensions, not int32 in 2",
         lambda each: each.update({f"{Q}.qweight": each[f"{Q}.qweight"].long()})),
        ("gptq", f"'{Q}.qweight' does not fit what stands beside it",
         lambda each: each.update({f"{Q}.scales": each[f"{Q}.scales"].flatten()})),
        ("int4 groups", f"'{Q}.weight_packed' does not fit what stands beside it",
         lambda each: each.update({f"{Q}.weight_scale": each[f"{Q}.weight_scale"].flatten()[:7]})),
        ("gptq", "has the unsupported type I32", lambda each: each.pop(f"{Q}.qweight")),
        ("int4 groups", "states 128 x 161 numbers, its codes are 128 x 160",
         lambda each: each[f"{Q}.weight_shape"][1:].fill_(161)),
        ("int8 channels", "its scales are int32, not floating point",
         lambda each: each.update({f"{Q}.weight_scale": each[f"{Q}.weight_scale"].int()})),
        ("fp8 tensors", "has the unsupported type F8_E4M3", lambda each: each.pop(f"{Q}.weight_scale")),
        ("fp8 tensors", f"'{Q}.weight_scale' is float32, not fp8 (e4m3), and has scales",
         lambda each: each.update({f"{Q}.weight": each[f"{Q}.weight"].float()})),
        ("fp8 tensors", "holds numbers that are not finite",
         lambda each: each[f"{Q}.weight"].view(torch.uint8)[0].fill_(0x7F)),
        ("fp8 channels", "has 3 x 1 scales, which don't fit 128 x 160 numbers",
         lambda each: each.update({f"{Q}.weight_scale": torch.ones(3, 1)})),
        ("awq", "the tensor for 'layers.0.q' is 96 x 160, the configuration says 128 x 160",
         lambda each: each.update({f"{Q}.{name}": each[f"{Q}.{name}"][:, : 96 // width].contiguous()
                                   for name, width in (("qweight", 8), ("qzeros", 8), ("scales", 1))})),
    ],
)  # fmt: skip
def test_tensors_that_do_not_fit(way: str, problem: str, change: Callable[[Stored], Any], tmp_path: Path) -> None:
    assert problem in changed(tmp_path / "model", way, {}, change)


def test_biases_of_zeros_are_left_out(tmp_path: Path) -> None:
    """Older tools write them for layers that have none."""
    write_quantised(tmp_path / "model", WAYS["gptq"])
    tensors = load_file(tmp_path / "model" / "model.safetensors") | {f"{Q}.bias": torch.zeros(128)}
    save_file(tensors, tmp_path / "model" / "model.safetensors")
    load_model(tmp_path / "model")
    save_file(tensors | {f"{Q}.bias": torch.ones(128)}, tmp_path / "model" / "model.safetensors")
    with pytest.raises(ModelFileError, match="is of no use to a Llama model"):
        load_model(tmp_path / "model")

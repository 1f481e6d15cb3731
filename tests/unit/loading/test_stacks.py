"""Experts that lie one by one in a file, or in stacks, and what is said of those that don't fit."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from polyfleet.kernels.weights.quantisation import dequantise
from polyfleet.kernels.weights.weight import WeightFormat
from polyfleet.loading.load import load_model
from polyfleet.loading.model import ModelFileError
from polyfleet.loading.quantised.tensors import fp8

EXPERTS, INNER, HIDDEN = 3, 8, 16
CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": HIDDEN, "num_hidden_layers": 1,
    "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8, "intermediate_size": 32, "vocab_size": 20,
    "num_experts": EXPERTS, "num_experts_per_tok": 2, "moe_intermediate_size": INNER, "max_position_embeddings": 64,
    "norm_topk_prob": True,
}  # fmt: skip
SHAPES = {
    **{"model.embed_tokens": (20, HIDDEN), "lm_head": (20, HIDDEN), "model.norm": (HIDDEN,)},
    **{"self_attn.q_proj": (16, HIDDEN), "self_attn.k_proj": (8, HIDDEN), "self_attn.v_proj": (8, HIDDEN)},
    **{"self_attn.o_proj": (HIDDEN, 16), "self_attn.q_norm": (8,), "self_attn.k_norm": (8,)},
    **{"input_layernorm": (HIDDEN,), "post_attention_layernorm": (HIDDEN,), "mlp.gate": (EXPERTS, HIDDEN)},
    **{f"mlp.experts.{number}.gate_proj": (INNER, HIDDEN) for number in range(EXPERTS)},
    **{f"mlp.experts.{number}.up_proj": (INNER, HIDDEN) for number in range(EXPERTS)},
    **{f"mlp.experts.{number}.down_proj": (HIDDEN, INNER) for number in range(EXPERTS)},
}
Tensors = dict[str, torch.Tensor]


@pytest.fixture
def tensors() -> Tensors:
    generator = torch.Generator().manual_seed(3)
    prefix = {name: "" if name.startswith(("model.", "lm_head")) else "model.layers.0." for name in SHAPES}
    return {f"{prefix[name]}{name}.weight": torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}


def load(folder: Path, tensors: Tensors, **change: Any) -> Any:
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(CONFIG | change))
    return load_model(folder).weights


def part(number: int, name: str) -> str:
    return f"model.layers.0.mlp.experts.{number}.{name}_proj.weight"


def test_stacks_and_single_experts_are_the_same(tmp_path: Path, tensors: Tensors) -> None:
    """In any order; a stack of gates has the ups of each expert behind them."""
    single = load(tmp_path, dict(reversed(tensors.items())))
    found = {
        name: torch.stack([tensors.pop(part(at, name)) for at in range(EXPERTS)]) for name in ("gate", "up", "down")
    }
    tensors["model.layers.0.mlp.experts.gate_up_proj"] = torch.cat((found["gate"], found["up"]), dim=1)
    tensors["model.layers.0.mlp.experts.down_proj"] = found["down"]
    stacked = load(tmp_path, tensors)
    for name, expected in found.items():
        for weights in (single, stacked):
            torch.testing.assert_close(weights[f"layers.0.experts.{name}"].data, expected.flatten(0, 1), rtol=0, atol=0)


def test_experts_that_dont_fit(tmp_path: Path, tensors: Tensors) -> None:
    def refused(change: Tensors, without: str = "") -> str:
        with pytest.raises(ModelFileError) as caught:
            load(tmp_path, {name: each for name, each in (tensors | change).items() if name != without})
        return str(caught.value).removeprefix(f"{tmp_path}: ")

    assert refused({}, part(1, "up")) == "the tensor for 'layers.0.experts.up[1]' is missing"
    assert refused({}, part(2, "up")) == "the tensor for 'layers.0.experts.up[2]' is missing"
    mixed = "the experts of 'layers.0.experts.down' are stored in several formats or widths, which is not supported"
    assert refused({part(0, "down"): tensors[part(0, "down")].half()}) == mixed
    foreign = {part(EXPERTS, "gate"): tensors[part(0, "gate")].clone()}
    assert refused(foreign) == "the tensor for 'layers.0.experts.gate' is 32 x 16, the configuration says 24 x 16"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"num_experts_per_tok": 4}, "a row can't go to 4 of 3 experts"),
        ({"num_experts": 0}, "num_experts must be 1 to 4096, not 0"),
        ({"num_experts": None}, "num_experts is missing"),
        (
            {"moe_intermediate_size": 4},
            "the tensor for 'layers.0.experts.gate[0]' is 8 x 16, the configuration says 4 x 16",
        ),
        ({"n_group": 4}, "n_group = 4 is not supported"),
    ],
)
def test_configurations_that_contradict(tmp_path: Path, tensors: Tensors, change: dict[str, Any], reason: str) -> None:
    with pytest.raises(ModelFileError) as caught:
        load(tmp_path, tensors, **change)
    assert reason in str(caught.value)


def of_tiles(rows: int, columns: int, tile: tuple[int, int]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A stack's e4m3 numbers, the scales of its tiles, and what they stand for."""
    generator = torch.Generator().manual_seed(rows)
    numbers = torch.randn((EXPERTS, rows, columns), generator=generator).to(torch.float8_e4m3fn)
    scales = torch.rand((EXPERTS, -(-rows // tile[0]), -(-columns // tile[1])), generator=generator) + 0.5
    wide = scales.repeat_interleave(tile[0], 1)[:, :rows].repeat_interleave(tile[1], 2)[:, :, :columns]
    return numbers, scales, numbers.float() * wide


def test_stacks_in_fp8_with_a_scale_for_each_tile(tmp_path: Path, tensors: Tensors) -> None:
    """As DeepSeek has its matrices; a tile may have rows of a gate and of an up."""
    tile = (6, 16)
    expected = {}
    for name, rows, columns in (("gate_up", 2 * INNER, HIDDEN), ("down", HIDDEN, INNER)):
        for number in range(EXPERTS):
            for each in name.split("_"):
                del tensors[part(number, each)]
        stem = f"model.layers.0.mlp.experts.{name}_proj"
        tensors[stem], tensors[f"{stem}_scale_inv"], expected[name] = of_tiles(rows, columns, tile)
    weights = load(tmp_path, tensors, quantization_config={"quant_method": "fp8", "weight_block_size": list(tile)})
    gate, up = expected["gate_up"].chunk(2, dim=1)
    for name, numbers in (("gate", gate), ("up", up), ("down", expected["down"])):
        found = dequantise(weights[f"layers.0.experts.{name}"], torch.float32)
        torch.testing.assert_close(found, numbers.half().float().flatten(0, 1), rtol=0, atol=0)


def test_stacks_in_fp8_stay_in_fp8() -> None:
    numbers, scales, expected = of_tiles(48, 64, (20, 32))
    weight = fp8("gate", numbers, scales, (20, 32))
    assert (weight.format, weight.rows, weight.columns) == (WeightFormat.FP8, EXPERTS * 48, 64)
    torch.testing.assert_close(dequantise(weight, torch.float32), expected.flatten(0, 1), rtol=0, atol=0)

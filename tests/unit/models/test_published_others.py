"""Configurations of models that have parts of others, put together in another way, as publishers write them."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from polyfleet.loading.folder_config import read_config
from polyfleet.models.errors import ModelFileError
from polyfleet.models.registry import weight_shapes

CWM: dict[str, Any] = {
    "architectures": ["CwmForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 128000, "head_dim": 128,
    "eos_token_id": [128001, 128008, 128009], "hidden_act": "silu", "hidden_size": 6144, "intermediate_size": 21504,
    "layer_types": [("sliding_attention" if layer % 4 else "full_attention") for layer in range(64)],
    "max_position_embeddings": 131072, "mlp_bias": False, "model_type": "cwm", "num_attention_heads": 48,
    "num_hidden_layers": 64, "num_key_value_heads": 8, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "factor": 16.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "rope_theta": 1000000.0, "sliding_window": 8192, "tie_word_embeddings": False, "vocab_size": 128256,
}  # fmt: skip
JAIS: dict[str, Any] = {
    "architectures": ["Jais2ForCausalLM"], "attention_bias": True, "bos_token_id": 0, "eos_token_id": 150024,
    "head_dim": 128, "hidden_act": "relu2", "hidden_size": 3328, "intermediate_size": 26624, "layer_norm_eps": 1e-05,
    "max_position_embeddings": 8192, "mlp_bias": True, "model_type": "jais2", "num_attention_heads": 26,
    "num_hidden_layers": 32, "num_key_value_heads": 26, "rope_theta": 500000, "tie_word_embeddings": False,
    "vocab_size": 150272,
}  # fmt: skip
HYPERCLOVA: dict[str, Any] = {
    "architectures": ["HyperCLOVAXForCausalLM"], "attention_bias": False, "attention_multiplier": 0.0078125,
    "embedding_multiplier": 10.0, "head_dim": 128, "hidden_act": "silu", "hidden_size": 6144,
    "intermediate_size": 14336, "logits_scaling": 0.125, "max_position_embeddings": 131072, "mlp_bias": False,
    "model_type": "hyperclovax", "num_attention_heads": 48, "num_hidden_layers": 38, "num_key_value_heads": 8,
    "residual_multiplier": 1.0, "rms_norm_eps": 1e-05, "rope_scaling": None, "rope_theta": 100000000,
    "tie_word_embeddings": False, "use_post_norm": True, "vocab_size": 110592,
}  # fmt: skip
SOLAR: dict[str, Any] = {
    "architectures": ["SolarOpenForCausalLM"], "attention_bias": False, "first_k_dense_replace": 0, "head_dim": 128,
    "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 10240, "max_position_embeddings": 131072,
    "model_type": "solar_open", "moe_intermediate_size": 1280, "n_group": 1, "n_routed_experts": 128,
    "n_shared_experts": 1, "norm_topk_prob": True, "num_attention_heads": 64, "num_experts_per_tok": 8,
    "num_hidden_layers": 48, "num_key_value_heads": 8, "partial_rotary_factor": 1.0, "rms_norm_eps": 1e-05,
    "rope_theta": 1000000, "routed_scaling_factor": 1.0, "tie_word_embeddings": False, "topk_group": 1,
    "use_qk_norm": False, "vocab_size": 196608,
}  # fmt: skip
MELLUM: dict[str, Any] = {
    "architectures": ["MellumForCausalLM"], "attention_bias": False, "head_dim": 128, "hidden_act": "silu",
    "hidden_size": 2304, "intermediate_size": 7168, "max_position_embeddings": 131072, "model_type": "mellum",
    "layer_types": ["full_attention" if layer % 4 == 3 else "sliding_attention" for layer in range(28)],
    "mlp_layer_types": ["sparse"] * 28, "moe_intermediate_size": 896, "norm_topk_prob": True,
    "num_attention_heads": 32, "num_experts": 64, "num_experts_per_tok": 8, "num_hidden_layers": 28,
    "num_key_value_heads": 4, "num_nextn_predict_layers": 1, "rms_norm_eps": 1e-06, "rope_parameters": {
        "full_attention": {"rope_type": "default", "rope_theta": 500000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
    },
    "sliding_window": 1024, "tie_word_embeddings": False, "vocab_size": 98304,
}  # fmt: skip
YOUTU: dict[str, Any] = {
    "architectures": ["YoutuForCausalLM"], "attention_bias": False, "hidden_act": "silu", "hidden_size": 2048,
    "intermediate_size": 6144, "kv_lora_rank": 512, "max_position_embeddings": 131072, "model_type": "youtu",
    "num_attention_heads": 16, "num_hidden_layers": 32, "num_key_value_heads": 16, "q_lora_rank": 1536,
    "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-06, "rope_interleave": True,
    "rope_scaling": None, "rope_theta": 1600000, "tie_word_embeddings": True, "v_head_dim": 128,
    "vocab_size": 128256,
}  # fmt: skip


def read(folder: Path, stated: dict[str, Any]) -> Any:
    (folder / "config.json").write_text(json.dumps(stated))
    return read_config(folder)[1]


@pytest.mark.parametrize(
    ("stated", "parameters"),
    [(CWM, 32.6), (JAIS, 8.1), (HYPERCLOVA, 14.7), (SOLAR, 102.6), (MELLUM, 12.1), (YOUTU, 1.96)],
)
def test_sizes(tmp_path: Path, stated: dict[str, Any], parameters: float) -> None:
    """So many billions, as their makers say."""
    shapes = weight_shapes(read(tmp_path, stated))
    assert sum(map(math.prod, shapes.values())) / 1e9 == pytest.approx(parameters, rel=1e-2)


def test_what_they_mean(tmp_path: Path) -> None:
    assert read(tmp_path, CWM).windows[:5] == (0, 8192, 8192, 8192, 0)
    assert read(tmp_path, CWM | {"layer_types": None}).windows[:5] == (0, 8192, 8192, 8192, 0)
    assert read(tmp_path, HYPERCLOVA).scales.head == 0.125
    solar, mellum = read(tmp_path, SOLAR), read(tmp_path, MELLUM)
    assert (solar.dense, solar.head_norms, len(solar.inverse_frequencies)) == ((), False, 64)
    assert mellum.windows[:4] == (1024, 1024, 1024, 0)
    assert [frequencies[1] for frequencies in (mellum.inverse_frequencies, mellum.local_frequencies)] == [
        pytest.approx(500000 ** (-1 / 64)), pytest.approx(10000 ** (-1 / 64)),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("stated", "change", "culprit"),
    [
        (CWM, {"layer_types": ["full_attention"]}, "layer_types must name full_attention or sliding_attention"),
        (CWM, {"attention_bias": True}, "attention_bias = True is not supported"),
        (JAIS, {"hidden_act": "silu"}, "the activation 'silu'"),
        (HYPERCLOVA, {"logits_scaling": 0}, "logits_scaling must be a finite number over 0"),
        (HYPERCLOVA, {"value_multiplier": 2.0}, "value_multiplier = 2.0 is not supported"),
        (SOLAR, {"num_experts_per_tok": 129}, "129 of 128 experts"),
        (SOLAR, {"scoring_func": "softmax"}, "scoring_func = 'softmax' is not supported"),
        (MELLUM, {"mlp_layer_types": ["dense"]}, "mlp_layer_types must name dense or sparse"),
        (MELLUM, {"rope_parameters": {"full_attention": {}}}, "sliding_attention is missing"),
        (YOUTU, {"n_routed_experts": 8}, "experts are not supported by this architecture"),
        (YOUTU, {"rope_interleave": False}, "rope_interleave = false is not supported"),
    ],
)
def test_variants_that_are_not_known(
    tmp_path: Path, stated: dict[str, Any], change: dict[str, Any], culprit: str
) -> None:
    with pytest.raises(ModelFileError, match=culprit):
        read(tmp_path, stated | change)

"""Configurations of models that have parts of others, put together in another way, as publishers write them."""

import math
from pathlib import Path
from typing import Any

import pytest
from tests.support.published_configs import read

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

FALCON: dict[str, Any] = {
    "alibi": False, "apply_residual_connection_post_layernorm": False, "architectures": ["FalconForCausalLM"],
    "auto_map": {"AutoConfig": "x.Y"}, "bias": False, "bos_token_id": 11, "eos_token_id": 11, "hidden_size": 4544,
    "layer_norm_epsilon": 1e-05, "model_type": "falcon", "multi_query": True, "new_decoder_architecture": False,
    "num_attention_heads": 71, "num_hidden_layers": 32, "parallel_attn": True, "vocab_size": 65024,
}  # fmt: skip
FALCON_40B: dict[str, Any] = FALCON | {
    "hidden_size": 8192, "new_decoder_architecture": True, "num_attention_heads": 128, "num_hidden_layers": 60,
    "num_kv_heads": 8,
}  # fmt: skip
GPTJ: dict[str, Any] = {
    "activation_function": "gelu_new", "architectures": ["GPTJForCausalLM"], "attn_pdrop": 0.0, "bos_token_id": 50256,
    "eos_token_id": 50256, "gradient_checkpointing": False, "layer_norm_epsilon": 1e-05, "model_type": "gptj",
    "n_embd": 4096, "n_head": 16, "n_inner": None, "n_layer": 28, "n_positions": 2048, "rotary": True,
    "rotary_dim": 64, "scale_attn_weights": True, "summary_activation": None, "summary_first_dropout": 0.1,
    "summary_type": "cls_index", "tie_word_embeddings": False, "use_cache": True, "vocab_size": 50400,
}  # fmt: skip
MINICPM: dict[str, Any] = {
    "architectures": ["MiniCPM3ForCausalLM"], "auto_map": {"AutoConfig": "x.Y"}, "bos_token_id": 1,
    "dim_model_base": 256, "eos_token_id": [2, 73440], "hidden_act": "silu", "hidden_size": 2560,
    "initializer_range": 0.1, "intermediate_size": 6400, "kv_lora_rank": 256, "max_position_embeddings": 32768,
    "model_type": "minicpm3", "num_attention_heads": 40, "num_hidden_layers": 62, "num_key_value_heads": 40,
    "q_lora_rank": 768, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "rms_norm_eps": 1e-05, "rope_scaling": {
        "type": "longrope", "long_factor": [1.0 + each / 8 for each in range(16)], "short_factor": [1.0] * 16,
        "original_max_position_embeddings": 32768,
    },
    "scale_depth": 1.4, "scale_emb": 12, "vocab_size": 73448,
}  # fmt: skip
HUNYUAN: dict[str, Any] = {
    "architectures": ["HYV3ForCausalLM"], "head_dim": 128, "hidden_act": "silu", "hidden_size": 4096,
    "intermediate_size": 13312, "max_position_embeddings": 131072, "model_type": "hy_v3",
    "moe_intermediate_size": 1536, "num_attention_heads": 64, "num_experts": 192, "num_experts_per_tok": 8,
    "num_hidden_layers": 80, "num_key_value_heads": 8, "num_shared_experts": 1, "rms_norm_eps": 1e-05,
    "rope_theta": 11158840.0, "router_scaling_factor": 2.826, "tie_word_embeddings": False, "vocab_size": 120832,
}  # fmt: skip

OLMO: dict[str, Any] = {
    "architectures": ["OlmoForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "clip_qkv": None,
    "eos_token_id": 50279, "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 11008,
    "max_position_embeddings": 2048, "model_type": "olmo", "num_attention_heads": 32, "num_hidden_layers": 32,
    "num_key_value_heads": 32, "pretraining_tp": 1, "rope_scaling": None, "rope_theta": 10000.0,
    "tie_word_embeddings": False, "vocab_size": 50304,
}  # fmt: skip
FLEX_OLMO: dict[str, Any] = {
    "architectures": ["FlexOlmoForCausalLM"], "attention_bias": False, "hidden_act": "silu", "hidden_size": 4096,
    "intermediate_size": 11008, "max_position_embeddings": 4096, "model_type": "flex_olmo", "norm_topk_prob": False,
    "num_attention_heads": 32, "num_experts": 7, "num_experts_per_tok": 5, "num_hidden_layers": 32,
    "num_key_value_heads": 32, "rms_norm_eps": 1e-06, "rope_theta": 500000, "router_aux_loss_coef": 0.01,
    "tie_word_embeddings": False, "vocab_size": 100352,
}  # fmt: skip
VAULT_GEMMA: dict[str, Any] = {
    "architectures": ["VaultGemmaForCausalLM"], "attention_bias": False, "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0, "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 1152,
    "intermediate_size": 6912, "layer_types": ["sliding_attention", "full_attention"] * 13,
    "max_position_embeddings": 1024, "model_type": "vaultgemma", "num_attention_heads": 4, "num_hidden_layers": 26,
    "num_key_value_heads": 4, "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-06, "rope_theta": 10000,
    "sliding_window": 512, "vocab_size": 256000,
}  # fmt: skip
NANOCHAT: dict[str, Any] = {
    "architectures": ["NanoChatForCausalLM"], "attention_bias": False, "final_logit_softcapping": 15.0,
    "hidden_act": "relu2", "hidden_size": 2048, "intermediate_size": 8192, "max_position_embeddings": 2048,
    "model_type": "nanochat", "num_attention_heads": 16, "num_hidden_layers": 32, "num_key_value_heads": 16,
    "rms_norm_eps": 1e-06, "rope_theta": 10000.0, "tie_word_embeddings": False, "vocab_size": 65536,
}  # fmt: skip


@pytest.mark.parametrize(
    ("stated", "parameters"),
    [
        *((CWM, 32.6), (JAIS, 8.1), (HYPERCLOVA, 14.7), (SOLAR, 102.6), (MELLUM, 12.1), (YOUTU, 1.96)),
        *((FALCON, 6.92), (FALCON_40B, 41.3), (GPTJ, 6.05), (MINICPM, 4.07), (HUNYUAN, 295.0)),
        *((OLMO, 6.89), (FLEX_OLMO, 33.3), (VAULT_GEMMA, 1.04), (NANOCHAT, 1.88)),
    ],
)
def test_sizes(tmp_path: Path, stated: dict[str, Any], parameters: float) -> None:
    """So many billions, as their makers say."""
    shapes = weight_shapes(read(tmp_path, stated))
    assert sum(map(math.prod, shapes.values())) / 1e9 == pytest.approx(parameters, rel=1e-2)


def test_what_they_mean(tmp_path: Path) -> None:
    assert read(tmp_path, CWM).windows[:5] == (0, 8192, 8192, 8192, 0)
    assert read(tmp_path, CWM | {"layer_types": None}).windows[:5] == (0, 8192, 8192, 8192, 0)
    assert read(tmp_path, HYPERCLOVA).scales.head == 0.125
    falcon, larger = read(tmp_path, FALCON), read(tmp_path, FALCON_40B)
    assert (falcon.num_kv_heads, falcon.parallel, falcon.own_norms) == (1, True, False)
    assert (larger.num_kv_heads, larger.parallel, larger.own_norms) == (8, True, True)
    assert len(read(tmp_path, GPTJ).inverse_frequencies) == 32, "64 columns of 256 turn"
    assert read(tmp_path, MINICPM).scales.residual == pytest.approx(1.4 / 62**0.5)
    assert read(tmp_path, HUNYUAN).dense == (0,)
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
        (FALCON, {"alibi": True}, "alibi = true is not supported: positions must turn heads"),
        (FALCON, {"activation": "relu"}, "the activation 'relu'"),
        (FALCON, {"num_ln_in_parallel_attn": 2}, "num_ln_in_parallel_attn = 2 is not supported"),
        (FALCON, {"apply_residual_connection_post_layernorm": True}, "apply_residual_connection_post_layernorm = True"),
        (GPTJ, {"rotary_dim": 512}, "rotary_dim must be even and at most the 256 columns of a head, not 512"),
        (GPTJ, {"scale_attn_weights": False}, "scale_attn_weights = false"),
        (MINICPM, {"scale_depth": 0}, "scale_depth must be a finite number over 0"),
        (MINICPM, {"n_routed_experts": 4}, "n_routed_experts = 4 is not supported"),
        (HUNYUAN, {"num_experts_per_tok": 193}, "193 of 192 experts"),
        (HUNYUAN, {"attention_bias": True}, "attention_bias = True is not supported"),
        (OLMO, {"clip_qkv": 8.0}, "clip_qkv = 8.0 is not supported"),
        (FLEX_OLMO, {"num_experts_per_tok": 8}, "8 of 7 experts"),
        (VAULT_GEMMA, {"layer_types": ["full_attention"]}, "layer_types must name full_attention or sliding_attention"),
        (NANOCHAT, {"hidden_act": "silu"}, "the activation 'silu'"),
        (NANOCHAT, {"attention_bias": True}, "attention_bias = True is not supported"),
        (YOUTU, {"n_routed_experts": 8}, "experts are not supported by this architecture"),
        (YOUTU, {"rope_interleave": False}, "rope_interleave = false is not supported"),
    ],
)
def test_variants_that_are_not_known(
    tmp_path: Path, stated: dict[str, Any], change: dict[str, Any], culprit: str
) -> None:
    with pytest.raises(ModelFileError, match=culprit):
        read(tmp_path, stated | change)

"""More configurations as publishers write them: families whose files say much beside what is computed."""

import math
from pathlib import Path
from typing import Any

import pytest
from tests.support.published_configs import read

from polyfleet.models.errors import ModelFileError
from polyfleet.models.registry import weight_shapes

COMMAND_R7B: dict[str, Any] = {
    "architectures": ["Cohere2ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 5,
    "cache_implementation": "hybrid", "eos_token_id": 255001, "head_dim": 128, "hidden_act": "silu",
    "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 14336, "layer_norm_eps": 1e-05,
    "layer_switch": 4, "logit_scale": 0.25, "max_position_embeddings": 8192, "model_type": "cohere2",
    "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8, "rope_scaling": None,
    "order_of_interleaved_layers": "local_attn_first", "pad_token_id": 0, "position_embedding_type": "rope_gptj",
    "rope_theta": 50000, "rotary_pct": 1.0, "sliding_window": 4096, "sliding_window_pattern": 4,
    "torch_dtype": "bfloat16", "use_cache": True, "use_embedding_sharing": True, "use_gated_activation": True,
    "use_parallel_block": True, "use_parallel_embedding": True, "vocab_size": 256000,
}  # fmt: skip
MINIMAX: dict[str, Any] = {
    "architectures": ["MiniMaxM2ForCausalLM"], "attn_type_list": [1] * 62, "auto_map": {"AutoConfig": "x.Y"},
    "head_dim": 128, "hidden_act": "silu", "hidden_size": 3072, "intermediate_size": 1536,
    "max_position_embeddings": 196608, "model_type": "minimax_m2", "mtp_transformer_layers": 1,
    "num_attention_heads": 48, "num_experts_per_tok": 8, "num_hidden_layers": 62, "num_key_value_heads": 8,
    "num_local_experts": 256, "num_mtp_modules": 3, "qk_norm_type": "per_layer", "rms_norm_eps": 1e-06,
    "rope_theta": 5000000, "rotary_dim": 64, "scoring_func": "sigmoid", "shared_intermediate_size": 0,
    "tie_word_embeddings": False, "use_cache": True, "use_mtp": True, "use_qk_norm": True, "use_routing_bias": True,
    "vocab_size": 200064,
}  # fmt: skip
LFM2: dict[str, Any] = {
    "architectures": ["Lfm2ForCausalLM"], "block_auto_adjust_ff_dim": True, "block_dim": 2048, "block_ff_dim": 12288,
    "block_ffn_dim_multiplier": 1.0, "block_mlp_init_scale": 1.0, "block_multiple_of": 256, "block_norm_eps": 1e-05,
    "block_out_init_scale": 1.0, "block_use_swiglu": True, "block_use_xavier_init": True, "bos_token_id": 1,
    "conv_L_cache": 3, "conv_bias": False, "conv_dim": 2048, "conv_dim_out": 2048, "conv_use_xavier_init": True,
    "eos_token_id": 7, "full_attn_idxs": [2, 5, 8, 10, 12, 14], "hidden_size": 2048, "initializer_range": 0.02,
    "max_position_embeddings": 128000, "model_type": "lfm2", "norm_eps": 1e-05, "num_attention_heads": 32,
    "num_heads": 32, "num_hidden_layers": 16, "num_key_value_heads": 8, "pad_token_id": 0, "rope_theta": 1000000.0,
    "torch_dtype": "bfloat16", "use_cache": True, "use_pos_enc": True, "vocab_size": 65536,
}  # fmt: skip
DOTS: dict[str, Any] = {
    "architectures": ["Dots1ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": None,
    "eos_token_id": 151643, "first_k_dense_replace": 1, "hidden_act": "silu", "hidden_size": 4096,
    "initializer_range": 0.02, "intermediate_size": 10944, "max_position_embeddings": 32768, "model_type": "dots1",
    "moe_intermediate_size": 1408, "moe_layer_freq": 1, "n_routed_experts": 128, "n_shared_experts": 2,
    "norm_topk_prob": True, "num_attention_heads": 32, "num_experts_per_tok": 6, "num_hidden_layers": 62,
    "num_key_value_heads": 32, "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_scaling": None,
    "rope_theta": 10000000, "routed_scaling_factor": 2.5, "sliding_window": None, "scoring_func": "noaux_tc",
    "tie_word_embeddings": False, "use_cache": True, "use_sliding_window": False, "vocab_size": 152064,
}  # fmt: skip
GLM_FLASH: dict[str, Any] = {
    "architectures": ["Glm4MoeLiteForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
    "eos_token_id": [154820, 154827, 154829], "first_k_dense_replace": 1, "hidden_act": "silu", "hidden_size": 2048,
    "intermediate_size": 10240, "kv_lora_rank": 512, "max_position_embeddings": 202752, "n_group": 1,
    "model_type": "glm4_moe_lite", "moe_intermediate_size": 1536, "n_routed_experts": 64, "n_shared_experts": 1,
    "norm_topk_prob": True, "num_attention_heads": 20, "num_experts_per_tok": 4, "num_hidden_layers": 47,
    "num_key_value_heads": 20, "num_nextn_predict_layers": 1, "pad_token_id": 154820, "partial_rotary_factor": 1.0,
    "q_lora_rank": 768, "qk_nope_head_dim": 192, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-05, "rope_scaling": None,
    "rope_theta": 1000000, "routed_scaling_factor": 1.8, "tie_word_embeddings": False, "topk_group": 1,
    "topk_method": "noaux_tc", "torch_dtype": "bfloat16", "v_head_dim": 256, "vocab_size": 154880,
}  # fmt: skip
EXAONE: dict[str, Any] = {
    "activation_function": "silu", "architectures": ["ExaoneForCausalLM"], "attention_dropout": 0.0,
    "auto_map": {"AutoConfig": "x.Y"}, "bos_token_id": 1, "embed_dropout": 0.0, "eos_token_id": 361,
    "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 14336, "layer_norm_epsilon": 1e-05,
    "max_position_embeddings": 4096, "model_type": "exaone", "num_attention_heads": 32, "num_key_value_heads": 8,
    "num_layers": 32, "pad_token_id": 0, "rope_scaling": None, "rope_theta": 500000.0, "tie_word_embeddings": False,
    "torch_dtype": "float32", "use_cache": True, "vocab_size": 102400,
}  # fmt: skip

TRINITY: dict[str, Any] = {
    "architectures": ["AfmoeForCausalLM"], "attention_dropout": 0.0, "auto_map": {"AutoConfig": "x.Y"},
    "dtype": "bfloat16", "global_attn_every_n_layers": 4, "head_dim": 128, "hidden_act": "silu", "hidden_size": 3072,
    "initializer_range": 0.02, "intermediate_size": 12288, "max_position_embeddings": 8192, "model_type": "afmoe",
    "layer_types": ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"] * 2,
    "moe_intermediate_size": 3072, "mup_enabled": True, "n_group": 1, "num_attention_heads": 48,
    "num_dense_layers": 6, "num_expert_groups": 1, "num_experts": 256, "num_experts_per_tok": 4,
    "num_hidden_layers": 8, "num_key_value_heads": 8, "num_limited_groups": 1, "num_shared_experts": 1,
    "rms_norm_eps": 1e-05, "rope_scaling": None, "rope_theta": 10000.0, "route_norm": True, "route_scale": 2.448,
    "score_func": "sigmoid", "sliding_window": 4096, "tie_word_embeddings": False, "topk_group": 1,
    "use_cache": True, "use_grouped_mm": True, "vocab_size": 200192,
}  # fmt: skip
LLAMA_4: dict[str, Any] = {
    "architectures": ["Llama4ForConditionalGeneration"], "boi_token_index": 200080, "eoi_token_index": 200081,
    "image_token_index": 200092, "model_type": "llama4", "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    "text_config": {
        "attention_bias": False, "attention_chunk_size": 8192, "attention_dropout": 0.0, "attn_scale": 0.1,
        "attn_temperature_tuning": 4, "bos_token_id": 200000, "eos_token_id": [200001, 200007, 200008],
        "floor_scale": 8192, "for_llm_compressor": False, "head_dim": 128, "hidden_act": "silu", "hidden_size": 5120,
        "initializer_range": 0.02, "interleave_moe_layer_step": 1, "intermediate_size": 8192,
        "intermediate_size_mlp": 16384, "max_position_embeddings": 10485760, "model_type": "llama4_text",
        "no_rope_layers": [], "num_attention_heads": 40, "num_experts_per_tok": 1, "num_hidden_layers": 48,
        "num_key_value_heads": 8, "num_local_experts": 16, "output_router_logits": False, "pad_token_id": 200018,
        "rms_norm_eps": 1e-05, "rope_scaling": {
            "factor": 16.0, "high_freq_factor": 1.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 8192,
            "rope_type": "llama3",
        },
        "rope_theta": 500000.0, "router_aux_loss_coef": 0.001, "router_jitter_noise": 0.0,
        "tie_word_embeddings": False, "torch_dtype": "bfloat16", "use_cache": True, "use_qk_norm": True,
        "vocab_size": 202048,
    },
    "vision_config": {"hidden_size": 1408},
}  # fmt: skip
LLAMA_4_TEXT = {**LLAMA_4["text_config"], "architectures": ["Llama4ForCausalLM"]}
K_EXAONE: dict[str, Any] = {
    "architectures": ["ExaoneMoEForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 1, "dtype": "bfloat16",
    "eos_token_id": 53, "first_k_dense_replace": 1, "head_dim": 128, "hidden_act": "silu", "hidden_size": 6144,
    "initializer_range": 0.02, "intermediate_size": 18432, "max_position_embeddings": 262144,
    "model_type": "exaone_moe", "moe_intermediate_size": 2048, "n_group": 1, "norm_topk_prob": True,
    "num_attention_heads": 64, "num_experts": 128, "num_experts_per_tok": 8, "num_hidden_layers": 48,
    "num_key_value_heads": 8, "num_nextn_predict_layers": 1, "num_shared_experts": 1, "pad_token_id": 0,
    "rms_norm_eps": 1e-05, "rope_parameters": {"rope_theta": 1000000, "rope_type": "default"},
    "routed_scaling_factor": 2.5, "scoring_func": "sigmoid", "sliding_window": 128, "sliding_window_pattern": "LLLG",
    "tie_word_embeddings": False, "topk_group": 1, "topk_method": "noaux_tc", "use_cache": True, "vocab_size": 153600,
}  # fmt: skip


@pytest.mark.parametrize(
    ("stated", "parameters"),
    [
        (COMMAND_R7B, 8.03),
        (MINIMAX, 228.7),
        (LFM2, 1.17),
        (DOTS, 142.8),
        (GLM_FLASH, 29.9),
        (EXAONE, 7.82),
        (K_EXAONE, 236.6),
        (LLAMA_4, 107.8),  # the text part of 109
    ],
)
def test_sizes(tmp_path: Path, stated: dict[str, Any], parameters: float) -> None:
    """So many billions, as their makers say."""
    shapes = weight_shapes(read(tmp_path, stated))
    assert sum(map(math.prod, shapes.values())) / 1e9 == pytest.approx(parameters, rel=5e-3)


def test_what_they_mean(tmp_path: Path) -> None:
    command = read(tmp_path, COMMAND_R7B)
    assert command.windows[:8] == (4096, 4096, 4096, 0) * 2
    assert [layer for layer, turns in enumerate(command.turning) if not turns][:2] == [3, 7]
    assert (command.logit_scale, command.norm_biases, command.norm_eps) == (0.25, False, 1e-5)
    lfm = read(tmp_path, LFM2)
    assert [layer for layer, recurrent in enumerate(lfm.recurrent) if not recurrent] == LFM2["full_attn_idxs"]
    assert (lfm.intermediate_size, lfm.tied_embeddings) == (8192, True)
    trinity = read(tmp_path, TRINITY)
    assert (trinity.windows, trinity.turning) == ((4096, 4096, 4096, 0) * 2, (True, True, True, False) * 2)
    assert (trinity.embedding_scale, trinity.route.scale, trinity.dense) == (3072**0.5, 2.448, (0, 1, 2, 3, 4, 5))
    llama = read(tmp_path, LLAMA_4)
    assert (llama.context_length, llama.dense, llama.turning[:4]) == (8191, (), (True, True, True, False))
    maverick = read(tmp_path, LLAMA_4_TEXT | {"interleave_moe_layer_step": 2, "attn_temperature_tuning": False})
    assert (maverick.context_length, maverick.dense[:3]) == (8192, (0, 2, 4))
    minimax = read(tmp_path, MINIMAX)
    assert len(minimax.inverse_frequencies) == 32, "half of a head turns"
    assert (minimax.route.sigmoid, minimax.correction) == (True, True)


def test_queries_that_grow_with_their_position_are_served_where_they_do_not(tmp_path: Path) -> None:
    rope: dict[str, Any] = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 16.0, "mscale": 1.0}
    rope |= {"mscale_all_dim": 1.0, "original_max_position_embeddings": 16384, "beta_fast": 32.0, "beta_slow": 1.0}
    stated = {
        "architectures": ["Ministral3ForCausalLM"], "hidden_size": 3072, "intermediate_size": 9216, "head_dim": 128,
        "max_position_embeddings": 262144, "model_type": "ministral3", "num_attention_heads": 32,
        "num_hidden_layers": 26, "num_key_value_heads": 8, "sliding_window": None, "vocab_size": 131072,
    }  # fmt: skip
    assert read(tmp_path, stated | {"rope_parameters": rope}).context_length == 262144
    grows = read(tmp_path, stated | {"rope_parameters": rope | {"llama_4_scaling_beta": 0.1}})
    assert (grows.context_length, grows.rope_amplitude) == (16384, 1.0)


@pytest.mark.parametrize(
    ("stated", "change", "culprit"),
    [
        (COMMAND_R7B, {"use_parallel_block": False}, "use_parallel_block = False"),
        (COMMAND_R7B, {"use_qk_norm": True}, "use_qk_norm = True"),
        (COMMAND_R7B, {"sliding_window_pattern": 0}, "sliding_window_pattern"),
        (MINIMAX, {"attn_type_list": [1] * 61 + [0]}, "attn_type_list"),
        (MINIMAX, {"scoring_func": "softmax"}, "scoring_func = 'softmax'"),
        (MINIMAX, {"shared_intermediate_size": 64}, "shared_intermediate_size = 64"),
        (LFM2, {"conv_bias": True}, "conv_bias = True"),
        (LFM2, {"conv_dim": 1024}, "conv_dim must be the hidden_size"),
        (LFM2, {"layer_types": ["conv"] * 15 + ["mamba"]}, "layer_types"),
        (DOTS, {"moe_layer_freq": 2}, "moe_layer_freq"),
        (DOTS, {"scoring_func": "softmax"}, "scoring_func"),
        (TRINITY, {"score_func": "softmax"}, "score_func"),
        (TRINITY, {"num_limited_groups": 2}, "num_expert_groups"),
        (K_EXAONE, {"scoring_func": "softmax"}, "scoring_func must be 'sigmoid'"),
        (K_EXAONE, {"topk_method": "own"}, "topk_method 'own'"),
        (K_EXAONE, {"mlp_layer_types": ["dense"] * 3}, "mlp_layer_types"),
        (K_EXAONE, {"num_experts_per_tok": 129}, "129 of 128 experts"),
        (LLAMA_4_TEXT, {"num_experts_per_tok": 17}, "17 of 16 experts"),
        (LLAMA_4_TEXT, {"no_rope_layers": [1, 1]}, "no_rope_layers must have a number for each of 48 layers"),
        (LLAMA_4_TEXT, {"layer_types": ["full_attention"] * 48}, "layer_types must name chunked_attention"),
        (LLAMA_4_TEXT, {"moe_layers": [1, 48]}, "moe_layers must be some of 0 to 47"),
        (LLAMA_4_TEXT, {"expert_bias": True}, "expert_bias = True is not supported"),
        (GLM_FLASH, {"mlp_layer_types": ["dense"] * 3}, "mlp_layer_types"),
    ],
)
def test_variants_that_are_not_known(
    tmp_path: Path, stated: dict[str, Any], change: dict[str, Any], culprit: str
) -> None:
    with pytest.raises(ModelFileError, match=culprit):
        read(tmp_path, stated | change)

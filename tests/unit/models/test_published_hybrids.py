"""Configurations of models with Mamba 2's layers as publishers write them."""

import math
from pathlib import Path
from typing import Any

import pytest
from tests.support.published_configs import read

from polyfleet.models.errors import ModelFileError
from polyfleet.models.registry import weight_shapes

GRANITE: dict[str, Any] = {
    "architectures": ["GraniteMoeHybridForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
    "attention_multiplier": 0.015625, "bos_token_id": 100257, "embedding_multiplier": 12, "eos_token_id": 100257,
    "hidden_act": "silu", "hidden_size": 2048, "init_method": "mup", "initializer_range": 0.1,
    "intermediate_size": 8192, "layer_types": [("attention" if at % 10 == 5 else "mamba") for at in range(40)],
    "logits_scaling": 8, "mamba_chunk_size": 256, "mamba_conv_bias": True, "mamba_d_conv": 4, "mamba_d_head": 64,
    "mamba_d_state": 128, "mamba_expand": 2, "mamba_n_groups": 1, "mamba_n_heads": 64, "mamba_proj_bias": False,
    "max_position_embeddings": 131072, "model_type": "granitemoehybrid", "normalization_function": "rmsnorm",
    "num_attention_heads": 32, "num_experts_per_tok": 0, "num_hidden_layers": 40, "num_key_value_heads": 8,
    "num_local_experts": 0, "output_router_logits": False, "pad_token_id": 100256, "position_embedding_type": "nope",
    "residual_multiplier": 0.22, "rms_norm_eps": 1e-05, "rope_scaling": None, "rope_theta": 10000,
    "router_aux_loss_coef": 0.01, "shared_intermediate_size": 8192, "tie_word_embeddings": True,
    "torch_dtype": "bfloat16", "use_cache": True, "vocab_size": 100352,
}  # fmt: skip
NEMOTRON: dict[str, Any] = {
    "architectures": ["NemotronHForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
    "auto_map": {"AutoConfig": "x.Y"}, "bos_token_id": 1, "chunk_size": 128, "conv_kernel": 4, "eos_token_id": 12,
    "head_dim": 128, "hidden_dropout": 0.0, "hidden_size": 4480, "initializer_range": 0.02,
    "hybrid_override_pattern": "M-M-M-MM-M-M-M*-M-M-M*-M-M-M-M*-M-M-M-M*-M-MM-M-M-M-M-M-",
    "intermediate_size": 15680, "layer_norm_epsilon": 1e-05, "mamba_head_dim": 80, "mamba_hidden_act": "silu",
    "mamba_num_heads": 128, "mamba_proj_bias": False, "max_position_embeddings": 131072, "mlp_bias": False,
    "mlp_hidden_act": "relu2", "model_type": "nemotron_h", "n_groups": 8, "num_attention_heads": 40,
    "num_hidden_layers": 56, "num_key_value_heads": 8, "num_logits_to_keep": 1, "num_query_groups": 8,
    "pad_token_id": 0, "rescale_prenorm_residual": True, "residual_in_fp32": False, "rms_norm_eps": 1e-05,
    "sliding_window": None, "ssm_state_size": 128, "tie_word_embeddings": False, "time_step_floor": 0.0001,
    "time_step_limit": [0.0, math.inf], "time_step_max": 0.1, "time_step_min": 0.001, "time_step_rank": 256,
    "torch_dtype": "bfloat16", "transformers_version": "4.51.3", "use_bias": False, "use_cache": True,
    "use_conv_bias": True, "use_mamba_kernels": True, "vocab_size": 131072,
}  # fmt: skip
NEMOTRON_3: dict[str, Any] = {
    "architectures": ["NemotronHForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
    "auto_map": {"AutoConfig": "x.Y"}, "bos_token_id": 1, "chunk_size": 128, "conv_kernel": 4, "eos_token_id": 2,
    "expand": 2, "head_dim": 128, "hidden_dropout": 0.0, "hidden_size": 2688, "initializer_range": 0.02,
    "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME", "intermediate_size": 1856,
    "layer_norm_epsilon": 1e-05, "mamba_head_dim": 64, "mamba_hidden_act": "silu", "mamba_num_heads": 64,
    "mamba_proj_bias": False, "mamba_ssm_cache_dtype": "float32", "max_position_embeddings": 262144,
    "mlp_bias": False, "mlp_hidden_act": "relu2", "model_type": "nemotron_h", "moe_intermediate_size": 1856,
    "moe_shared_expert_intermediate_size": 3712, "n_group": 1, "n_groups": 8, "n_routed_experts": 128,
    "n_shared_experts": 1, "norm_eps": 1e-05, "norm_topk_prob": True, "num_attention_heads": 32,
    "num_experts_per_tok": 6, "num_hidden_layers": 52, "num_key_value_heads": 2, "num_logits_to_keep": 1,
    "pad_token_id": 0, "partial_rotary_factor": 1.0, "rescale_prenorm_residual": True, "residual_in_fp32": False,
    "rope_theta": 10000, "routed_scaling_factor": 2.5, "sliding_window": None, "ssm_state_size": 128,
    "tie_word_embeddings": False, "time_step_floor": 0.0001, "time_step_limit": [0.0, math.inf],
    "time_step_max": 0.1, "time_step_min": 0.001, "topk_group": 1, "torch_dtype": "bfloat16", "use_bias": False,
    "use_cache": True, "use_conv_bias": True, "use_mamba_kernels": True, "vocab_size": 131072,
}  # fmt: skip
FALCON: dict[str, Any] = {
    "architectures": ["FalconH1ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
    "attention_in_multiplier": 1.0, "attention_out_multiplier": 0.9375, "attn_layer_indices": None,
    "bos_token_id": 1, "embedding_multiplier": 5.656854249492381, "eos_token_id": 11, "head_dim": 64,
    "hidden_act": "silu", "hidden_size": 1024, "initializer_range": 0.02, "intermediate_size": 2048,
    "key_multiplier": 0.39062499999999994, "lm_head_multiplier": 0.0390625, "mamba_chunk_size": 128,
    "mamba_conv_bias": True, "mamba_d_conv": 4, "mamba_d_head": 64, "mamba_d_ssm": 1536, "mamba_d_state": 128,
    "mamba_expand": 2, "mamba_n_groups": 1, "mamba_n_heads": 24, "mamba_norm_before_gate": False,
    "mamba_proj_bias": False, "mamba_rms_norm": False, "mamba_use_mlp": True, "max_position_embeddings": 16384,
    "mlp_bias": False, "mlp_expansion_factor": 8, "mlp_multipliers": [0.8838834764831844, 0.5859375],
    "model_type": "falcon_h1", "num_attention_heads": 8, "num_hidden_layers": 36, "num_key_value_heads": 2,
    "num_logits_to_keep": 1, "pad_token_id": 0, "projectors_bias": False, "rms_norm_eps": 1e-05,
    "rope_scaling": None, "rope_theta": 100000000000.0, "ssm_in_multiplier": 1.25, "ssm_out_multiplier": 0.23570226,
    "ssm_multipliers": [0.35, 0.25, 0.17, 0.5, 0.35], "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    "use_cache": True, "vocab_size": 32784,
}  # fmt: skip
BAMBA: dict[str, Any] = {
    "architectures": ["BambaForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
    "attn_layer_indices": [9, 18, 27], "attn_rotary_emb": 64, "bos_token_id": 128000, "eos_token_id": 128001,
    "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 14336,
    "mamba_chunk_size": 256, "mamba_conv_bias": True, "mamba_d_conv": 4, "mamba_d_head": 64, "mamba_d_state": 128,
    "mamba_expand": 2, "mamba_n_groups": 1, "mamba_n_heads": 128, "mamba_proj_bias": False,
    "max_position_embeddings": 262144, "mlp_bias": False, "model_type": "bamba", "num_attention_heads": 32,
    "num_hidden_layers": 32, "num_key_value_heads": 8, "num_logits_to_keep": 1, "pad_token_id": 0,
    "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    "use_cache": True, "use_mamba_kernels": True, "vocab_size": 128256,
}  # fmt: skip


@pytest.mark.parametrize(
    ("stated", "parameters"),
    [(GRANITE, 3.19), (NEMOTRON, 8.89), (NEMOTRON_3, 31.6), (FALCON, 0.521), (BAMBA, 9.78)],
)
def test_sizes(tmp_path: Path, stated: dict[str, Any], parameters: float) -> None:
    """So many billions, as their makers say."""
    shapes = weight_shapes(read(tmp_path, stated))
    assert sum(map(math.prod, shapes.values())) / 1e9 == pytest.approx(parameters, rel=5e-3)


@pytest.mark.parametrize(
    ("stated", "change", "culprit"),
    [
        (GRANITE, {"layer_types": ["mamba3"] * 40}, "layer_types must name attention, full_attention, mamba, linear"),
        (GRANITE, {"position_embedding_type": "alibi"}, r"'alibi' is not supported \(supported: rope, nope\)"),
        (GRANITE, {"normalization_function": "layernorm"}, "normalization_function 'layernorm'"),
        (GRANITE, {"mamba_n_heads": 60}, "60 mamba heads of 64 columns are not the 4096 that there are"),
        (GRANITE, {"mamba_n_groups": 3}, "64 mamba heads can't share 3 groups evenly"),
        (GRANITE, {"mamba_d_conv": 1}, "mamba_d_conv must be 2 to 64"),
        (GRANITE, {"time_step_limit": [0.0, 0.5]}, r"time_step_limit = \[0.0, 0.5\] is not supported"),
        (NEMOTRON, {"hybrid_override_pattern": "MEM*E" + "M" * 51}, "n_routed_experts is missing"),
        (NEMOTRON_3, {"hybrid_override_pattern": "MEM*X" + "M" * 47}, "a kind of layer is none of these: Mamba 2"),
        (NEMOTRON_3, {"num_experts_per_tok": 129}, "129 of 128 experts"),
        (NEMOTRON_3, {"n_group": 3}, "128 experts in 3 groups"),
        (NEMOTRON_3, {"moe_shared_expert_intermediate_size": 0}, "moe_shared_expert_intermediate_size must be 1"),
        (NEMOTRON_3, {"moe_router_scores": "softmax"}, "moe_router_scores = 'softmax' is not supported"),
        (NEMOTRON, {"mlp_hidden_act": "silu"}, "the activation 'silu'"),
        (NEMOTRON, {"num_hidden_layers": 52}, "num_hidden_layers must be 56"),
        (NEMOTRON, {"n_groups": 7}, "128 mamba heads can't share 7 groups evenly"),
        (NEMOTRON, {"attention_bias": True}, "attention_bias = True is not supported"),
        (FALCON, {"ssm_multipliers": [0.35, 0.25]}, "ssm_multipliers must be 5 numbers over 0"),
        (FALCON, {"mlp_multipliers": [0.0, 1.0]}, "mlp_multipliers must be 2 numbers over 0"),
        (FALCON, {"projectors_bias": True}, "projectors_bias must be mamba_proj_bias"),
        (FALCON, {"mamba_rms_norm": True, "mamba_norm_before_gate": True}, "mamba_norm_before_gate = true"),
        (FALCON, {"value_multiplier": 0.5}, "value_multiplier = 0.5 is not supported"),
        (BAMBA, {"attn_layer_indices": [9, 32]}, "attn_layer_indices must be some of 0 to 31"),
        (BAMBA, {"attn_rotary_emb": 128}, "attn_rotary_emb must be 64"),
        (GRANITE, {"mamba_step_rank": 4}, "mamba_step_rank = 4 is not supported"),
    ],
)
def test_variants_that_are_not_known(
    tmp_path: Path, stated: dict[str, Any], change: dict[str, Any], culprit: str
) -> None:
    with pytest.raises(ModelFileError, match=culprit):
        read(tmp_path, stated | change)

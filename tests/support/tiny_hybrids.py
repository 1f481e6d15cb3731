"""Tiny checkpoints of models most of whose layers keep a state."""

from collections.abc import Mapping
from typing import Any

from tests.support.tiny_kinds import GGUF_GRANITE, GGUF_MIXTURE, GRANITE, LAYERS, LLAMA_LIKE, MIXTURE, Tiny

DELTA = {
    **{"layer_types": ["linear_attention", "full_attention"] * 2, "head_dim": 32, "linear_conv_kernel_dim": 3},
    **{"linear_num_key_heads": 2, "linear_key_head_dim": 16, "linear_num_value_heads": 4, "linear_value_head_dim": 32},
}
STATEFUL: dict[str, Any] = {"norm_offset": 1.0, "tolerance": 1e-3}
SHARED_MIXTURE = {**MIXTURE, "shared_expert_intermediate_size": 48}
HYBRID = ["linear_attention", "full_attention"] * 2
MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 16, "mamba_d_conv": 3, "mamba_proj_bias": False}
GGUF_MAMBA = {
    **{"ssm.conv_kernel": 3, "ssm.state_size": 16, "ssm.group_count": 1, "ssm.inner_size": 128},
    **{"ssm.time_step_rank": 8, "attention.head_count_kv": [0, 2, 0, 2]},
}
NEMOTRON = {
    **{"layers_block_type": ["linear_attention", "mlp", "full_attention", "linear_attention"], "head_dim": 16},
    **{"mamba_num_heads": 8, "mamba_head_dim": 16, "n_groups": 2, "ssm_state_size": 16, "conv_kernel": 3},
    "time_step_min": 1e-9,  # which transformers takes for a bound, of prompts alone
}
NEMOTRON_3 = {
    **{**NEMOTRON, "layers_block_type": ["linear_attention", "moe", "full_attention", "moe"], "n_routed_experts": 8},
    **{"num_experts_per_tok": 2, "moe_intermediate_size": 32, "moe_shared_expert_intermediate_size": 48},
    "routed_scaling_factor": 2.5,
}
GGUF_NEMOTRON_3 = {
    **{**GGUF_MAMBA, "ssm.group_count": 2, "attention.head_count_kv": [0, 0, 2, 0], "feed_forward_length": [0] * 4},
    **{"expert_count": 8, "expert_used_count": 2, "expert_shared_count": 1, "expert_feed_forward_length": 32},
    **{"expert_shared_feed_forward_length": 48, "expert_weights_scale": 2.5, "expert_weights_norm": True},
}
FALCON = {
    **{"ssm_multipliers": [0.5, 1.5, 0.7, 1.2, 0.9], "mlp_multipliers": [0.8, 1.1], "key_multiplier": 0.9},
    **{
        "embedding_multiplier": 2.0,
        "lm_head_multiplier": 0.5,
        "attention_in_multiplier": 0.9,
        "ssm_in_multiplier": 1.1,
    },
    **{"attention_out_multiplier": 0.8, "ssm_out_multiplier": 0.7, "mamba_d_ssm": 128},
}
HYBRIDS: Mapping[str, Tiny] = {
    "nemotron_h": Tiny(
        "nemotron_h",
        NEMOTRON,
        "nemotron_h",
        {
            **GGUF_MAMBA,
            "ssm.group_count": 2,
            "attention.head_count_kv": [0, 0, 2, 0],
            "feed_forward_length": [0, 96, 0, 0],
        },
    ),
    "nemotron_h, experts": Tiny("nemotron_h", NEMOTRON_3, "nemotron_h_moe", GGUF_NEMOTRON_3),
    "nemotron_h, experts of latents": Tiny("nemotron_h", {**NEMOTRON_3, "moe_latent_size": 32, "n_group": 2}),
    "falcon_h1": Tiny("falcon_h1", {**MAMBA, **FALCON}),
    "falcon_h1, norms": Tiny(
        "falcon_h1",
        {**MAMBA, **FALCON, "mamba_rms_norm": True, "mamba_norm_before_gate": False, "mamba_n_groups": 2},
    ),
    "bamba": Tiny("bamba", {**MAMBA, "attn_layer_indices": [1, 3]}),
    "qwen3next": Tiny("qwen3_next", {**DELTA, **SHARED_MIXTURE, "norm_topk_prob": True}, **STATEFUL, seed=2),
    "qwen3.5": Tiny("qwen3_5_text", {**DELTA, "linear_num_key_heads": 4}, **STATEFUL, seed=2),
    "qwen3.5moe": Tiny("qwen3_5_moe_text", {**DELTA, **SHARED_MIXTURE}, **STATEFUL, seed=3),
    "granite4": Tiny(
        "granitemoehybrid",
        {
            **{**GRANITE, "num_local_experts": 4, "num_experts_per_tok": 2, "shared_intermediate_size": 48},
            **{**MAMBA, "mamba_n_groups": 2, "position_embedding_type": "nope", "layer_types": HYBRID},
        },
        "granitehybrid",
        {
            **{**GGUF_GRANITE, **GGUF_MIXTURE, **GGUF_MAMBA, "expert_shared_feed_forward_length": 48},
            **{"rope.scaling.finetuned": False, "ssm.group_count": 2},
        },
        LLAMA_LIKE,
    ),
    "granite4, dense": Tiny(
        "granitemoehybrid",
        {**GRANITE, **MAMBA, "num_local_experts": 0, "shared_intermediate_size": 96, "layer_types": HYBRID},
        "granitehybrid",
        {**GGUF_GRANITE, **GGUF_MAMBA, "rope.scaling.finetuned": False},
        LLAMA_LIKE,
    ),
    "granite4, no states": Tiny(
        "granitemoehybrid",
        {
            **{**GRANITE, "num_local_experts": 0, "shared_intermediate_size": 96, "position_embedding_type": "rope"},
            "layer_types": ["full_attention"] * LAYERS,
        },
    ),
    "lfm2": Tiny(
        "lfm2",
        {"block_auto_adjust_ff_dim": False, "layer_types": ["conv", "full_attention"] * 2},
        "lfm2",
        {"attention.head_count_kv": [0, 2, 0, 2], "shortconv.l_cache": 3},
    ),
    "lfm2moe": Tiny(
        "lfm2_moe",
        {**MIXTURE, "num_dense_layers": 1, "layer_types": ["conv", "full_attention"] * 2},
        "lfm2moe",
        {
            **{**GGUF_MIXTURE, "attention.head_count_kv": [0, 2, 0, 2], "shortconv.l_cache": 3},
            **{"expert_feed_forward_length": 32, "expert_gating_func": 2, "leading_dense_block_count": 1},
        },
    ),
}

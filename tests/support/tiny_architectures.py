"""A tiny random checkpoint of every architecture, by transformers."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from tests.support.republished import as_internlm2, as_published_exaone
from tests.support.tiny_classics import CLASSICS
from tests.support.tiny_hybrids import HYBRIDS
from tests.support.tiny_kinds import (
    CONTEXT,
    GGUF_GRANITE,
    GGUF_MIXTURE,
    GRANITE,
    LAYERS,
    LLAMA_LIKE,
    MIXTURE,
    PLAIN,
    VOCABULARY,
    WINDOW,
    YARN,
    Tiny,
)
from tests.support.tiny_mixes import MIXES

COMMON: Mapping[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "max_position_embeddings": CONTEXT,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "initializer_range": 0.2,
}
SHARPENED = {**YARN, "factor": 2.0, "original_max_position_embeddings": 128, "llama_4_scaling_beta": 0.1}
HALF = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
ALPHA = {"rope_type": "dynamic", "rope_theta": 1e4, "alpha": 20.0, "factor": 1.0}
LONG = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "original_max_position_embeddings": 16,
    "long_factor": [1.0 + each for each in range(8)],
    "short_factor": [1.0] * 8,
}


GEMMA = {"head_dim": 16, "sliding_window": WINDOW, "query_pre_attn_scalar": 16}
LATENT = {
    **{"kv_lora_rank": 32, "q_lora_rank": None, "qk_rope_head_dim": 16, "qk_nope_head_dim": 32, "v_head_dim": 48},
    **{"n_routed_experts": 8, "num_experts_per_tok": 2, "n_group": 4, "topk_group": 2, "n_shared_experts": 2},
    **{"moe_intermediate_size": 32, "first_k_dense_replace": 1, "num_key_value_heads": 4},
}
TINY: Mapping[str, Tiny] = {
    "llama": Tiny("llama", {}, "llama", {}, LLAMA_LIKE),
    "llama, yarn": Tiny("llama", {"rope_parameters": YARN}),
    "llama, dynamic": Tiny("llama", {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}),
    "mistral": Tiny("mistral", {"head_dim": 32, "sliding_window": WINDOW}, "mistral3", {}, LLAMA_LIKE),
    "qwen2": Tiny("qwen2", {}, "qwen2"),
    "qwen2, windows": Tiny(
        "qwen2",
        {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 2, "attention_bias": True},
    ),
    "qwen3": Tiny("qwen3", {"head_dim": 32}, "qwen3"),
    "gemma2": Tiny("gemma2", GEMMA, "gemma2", {}, norm_offset=1.0),
    "gemma3": Tiny(
        "gemma3_text",
        {**GEMMA, "layer_types": ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"]},
        "gemma3",
        {"attention.sliding_window_pattern": [True, True, False, True]},
        norm_offset=1.0,
    ),
    "gemma3, wide windows": Tiny("gemma3_text", {**GEMMA, "sliding_window": CONTEXT}, norm_offset=1.0),
    "phi3": Tiny("phi3", {"sliding_window": WINDOW}, "phi3"),
    "phi3, longrope": Tiny("phi3", {"rope_parameters": LONG, "original_max_position_embeddings": 16}),
    "phi3, half": Tiny("phi3", {"rope_parameters": HALF}),
    "smollm3": Tiny("smollm3", {}, "smollm3", {}, LLAMA_LIKE),
    "mixtral": Tiny("mixtral", {"num_local_experts": 4}, "llama", GGUF_MIXTURE, LLAMA_LIKE, seed=4),
    "qwen3moe": Tiny(
        "qwen3_moe",
        {**MIXTURE, "head_dim": 16, "num_experts": 6, "num_experts_per_tok": 3, "norm_topk_prob": True},
        "qwen3moe",
        {"expert_count": 6, "expert_used_count": 3, "expert_feed_forward_length": 32},
        seed=1,
    ),
    "qwen3moe, dense layers": Tiny("qwen3_moe", {**MIXTURE, "mlp_only_layers": [1], "decoder_sparse_step": 2}),
    "qwen2moe": Tiny(
        "qwen2_moe",
        {**MIXTURE, "shared_expert_intermediate_size": 48},
        "qwen2moe",
        {**GGUF_MIXTURE, "expert_feed_forward_length": 32, "expert_shared_feed_forward_length": 48},
        seed=2,
    ),
    "deepseek2": Tiny(
        "deepseek_v2",
        {
            **{**LATENT, "topk_method": "group_limited_greedy", "routed_scaling_factor": 2.0},
            "rope_parameters": {**YARN, "mscale": 0.7, "mscale_all_dim": 0.9},
        },
    ),
    "deepseek3": Tiny(
        "deepseek_v3",
        {**LATENT, "q_lora_rank": 48, "rope_parameters": {**YARN, "mscale": 0.9, "mscale_all_dim": 0.9}},
        "deepseek2",
        {
            **{"attention.kv_lora_rank": 32, "attention.q_lora_rank": 48, "attention.key_length": 48},
            **{"attention.value_length": 48, "rope.dimension_count": 16, "leading_dense_block_count": 1},
            **{"expert_count": 8, "expert_used_count": 2, "expert_shared_count": 2, "expert_gating_func": 2},
            **{"expert_group_count": 4, "expert_group_used_count": 2, "expert_feed_forward_length": 32},
            **{"expert_weights_norm": True, "expert_weights_scale": 2.5, "rope.scaling.type": "yarn"},
            **{"rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 64},
            "rope.scaling.yarn_log_multiplier": 0.09,
        },
    ),
    "glm4moe": Tiny(
        "glm4_moe",
        {
            **{"n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "use_qk_norm": True},
            **{"routed_scaling_factor": 1.5, "rope_parameters": HALF, "attention_bias": True, "head_dim": 16},
        },
        "glm4moe",
        {
            **{"expert_count": 8, "expert_used_count": 2, "expert_shared_count": 1, "expert_feed_forward_length": 32},
            **{"leading_dense_block_count": 1, "expert_weights_scale": 1.5, "rope.dimension_count": 8},
        },
        seed=1,
    ),
    "gpt-oss": Tiny(
        "gpt_oss",
        {
            **{"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 16, "sliding_window": WINDOW},
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
        },
        "gpt-oss",
        GGUF_MIXTURE,
    ),
    "gemma": Tiny("gemma", {"head_dim": 16}, "gemma", {}, norm_offset=1.0),
    "olmo2": Tiny("olmo2", {}, "olmo2"),
    "olmo3": Tiny(
        "olmo3",
        {"sliding_window": WINDOW, "rope_parameters": {"full_attention": YARN, "sliding_attention": PLAIN}},
        "olmo2",
        {
            **{"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 64},
            "attention.sliding_window_pattern": [True, True, True, False],
        },
    ),
    "granite": Tiny("granite", GRANITE, "granite", GGUF_GRANITE, LLAMA_LIKE),
    "ernie4.5": Tiny("ernie4_5", {"head_dim": 16}, "ernie4_5"),
    "hunyuan": Tiny("hunyuan_v1_dense", {"head_dim": 16, "rope_parameters": ALPHA}),
    "internlm3": Tiny("internlm3", {"head_dim": 16, "attention_bias": True, "mlp_bias": True}),
    "seed_oss": Tiny("seed_oss", {"head_dim": 16}, "seed_oss"),
    "exaone4": Tiny("exaone4", {"sliding_window": WINDOW}, "exaone4"),
    "exaone4, no windows": Tiny("exaone4", {"sliding_window": None, "layer_types": ["full_attention"] * LAYERS}),
    "starcoder2": Tiny("starcoder2", {"sliding_window": WINDOW}, "starcoder2"),
    "nemotron": Tiny("nemotron", {}, "nemotron", {"rope.dimension_count": 8}, norm_offset=1.0),
    "stablelm": Tiny("stablelm", {"use_qkv_bias": True}, "stablelm", {"rope.dimension_count": 4}),
    "granitemoe": Tiny(
        "granitemoeshared",
        {**GRANITE, "num_local_experts": 4, "num_experts_per_tok": 2, "shared_intermediate_size": 48},
        "granitemoe",
        {**GGUF_GRANITE, **GGUF_MIXTURE, "expert_shared_feed_forward_length": 48},
        LLAMA_LIKE,
    ),
    "olmoe": Tiny("olmoe", {"num_experts": 4, "num_experts_per_tok": 2}, "olmoe", GGUF_MIXTURE, seed=2),
    "ernie4.5moe": Tiny(
        "ernie4_5_moe",
        {
            **{"moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 32, "moe_num_shared_experts": 2},
            "moe_layer_start_index": 1,
        },
        "ernie4_5-moe",
        {
            **{**GGUF_MIXTURE, "expert_feed_forward_length": 32, "expert_shared_feed_forward_length": 64},
            **{"leading_dense_block_count": 1, "interleave_moe_layer_step": 1},
        },
    ),
    "hunyuanmoe": Tiny(
        "hunyuan_v1_moe",
        {"head_dim": 16, "num_experts": 4, "moe_topk": 2},
        "hunyuan-moe",
        {**GGUF_MIXTURE, "expert_shared_feed_forward_length": 96},
    ),
    "phi2": Tiny("phi", {}, "phi2", {"rope.dimension_count": 8}),
    "arcee": Tiny("arcee", {"attention_bias": True, "mlp_bias": True}, "arcee", {}, LLAMA_LIKE),
    "internlm2": Tiny("llama", {}, "internlm2", {}, LLAMA_LIKE, rewrite=as_internlm2),
    "cohere": Tiny("cohere", {"logit_scale": 0.5}, "command-r", {"logit_scale": 0.5}),
    "cohere2": Tiny("cohere2", {"logit_scale": 0.5, "sliding_window": WINDOW}, "cohere2", {"logit_scale": 0.5}),
    "dots1": Tiny(
        "dots1",
        {
            **{"n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "n_shared_experts": 1},
            **{"norm_topk_prob": True, "routed_scaling_factor": 1.5, "first_k_dense_replace": 1, "head_dim": 16},
            "sliding_window": None,
        },
        "dots1",
        {
            **{"expert_count": 8, "expert_used_count": 2, "expert_shared_count": 1, "expert_feed_forward_length": 32},
            **{"leading_dense_block_count": 1, "expert_weights_scale": 1.5, "expert_gating_func": 2},
        },
        seed=2,
    ),
    "glm4flash": Tiny(
        "glm4_moe_lite", {**LATENT, "q_lora_rank": 48, "mlp_layer_types": ["dense", "sparse", "sparse", "dense"]}
    ),
    "minimax-m2": Tiny(
        "minimax_m2",
        {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 16, "rope_parameters": HALF},
        "minimax-m2",
        {**GGUF_MIXTURE, "expert_gating_func": 2, "expert_feed_forward_length": 96, "rope.dimension_count": 8},
    ),
    "trinity": Tiny(
        "afmoe",
        {
            **{**MIXTURE, "head_dim": 16, "sliding_window": WINDOW, "mup_enabled": True, "route_scale": 1.5},
            **{"num_dense_layers": 1, "num_shared_experts": 1, "global_attn_every_n_layers": 4},
        },
        "afmoe",
        {
            **{**GGUF_MIXTURE, "expert_feed_forward_length": 32, "expert_shared_count": 1, "expert_gating_func": 2},
            **{"leading_dense_block_count": 1, "expert_weights_scale": 1.5, "expert_weights_norm": True},
        },
    ),
    "exaone_moe": Tiny(
        "exaone_moe",
        {**MIXTURE, "num_experts": 8, "sliding_window": WINDOW, "routed_scaling_factor": 1.5},
        "exaone-moe",
        {
            **{"expert_count": 8, "expert_used_count": 2, "expert_shared_count": 1, "expert_feed_forward_length": 32},
            **{"leading_dense_block_count": 1, "expert_weights_scale": 1.5, "expert_gating_func": 2},
        },
        seed=1,
    ),
    "exaone": Tiny("exaone", {}, "exaone", rewrite=as_published_exaone),
    "exaone, written by transformers": Tiny("exaone", {}),
    "mistral, ministral 3": Tiny("ministral3", {"head_dim": 16, "rope_parameters": SHARPENED}),
    "glm4": Tiny("glm4", {"head_dim": 16}, "glm4", {"rope.dimension_count": 8}),
    "glm": Tiny("glm", {"head_dim": 16}),
    **MIXES,
    **HYBRIDS,
    **CLASSICS,
}


def configuration(tiny: Tiny) -> Any:
    """As transformers has it."""
    import transformers

    return transformers.AutoConfig.for_model(tiny.kind, **{**COMMON, **tiny.config})


def make(tiny: Tiny, folder: Path) -> Any:
    """Write the folder; returns transformers' model."""
    import transformers

    config = configuration(tiny)
    torch.manual_seed(len(tiny.kind) + tiny.seed)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1 and not name.endswith(("A_log", "dt_bias")):
                mean = 0.0 if name.endswith("bias") else 1.0 - tiny.norm_offset
                parameter.normal_(mean, 0.2)
        for name, numbers in (*model.named_buffers(), *model.named_parameters()):
            if name.endswith(("correction_bias", "expert_bias")):
                numbers.normal_(0, 0.1)
    model.save_pretrained(folder)
    if tiny.rewrite is not None:
        tiny.rewrite(folder)
    return model.eval()

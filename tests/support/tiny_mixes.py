"""Tiny checkpoints of models that have parts of others, put together in another way."""

from collections.abc import Mapping

from tests.support.tiny_kinds import CONTEXT, GRANITE, LLAMA_LIKE, MIXTURE, PLAIN, WINDOW, YARN, Tiny

MIXES: Mapping[str, Tiny] = {
    "llama4": Tiny(
        "llama4_text",
        {
            **{"num_local_experts": 4, "intermediate_size": 32, "intermediate_size_mlp": 96, "head_dim": 16},
            **{"interleave_moe_layer_step": 2, "attention_chunk_size": CONTEXT, "floor_scale": CONTEXT + 1},
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
        },
        "llama4",
        {
            **{"expert_count": 4, "expert_used_count": 1, "expert_feed_forward_length": 32, "feed_forward_length": 96},
            "interleave_moe_layer_step": 2,
        },
    ),
    "cwm": Tiny("cwm", {"head_dim": 16, "sliding_window": WINDOW, "rope_parameters": PLAIN}),
    "helium": Tiny("helium", {"head_dim": 16}),
    "jais2": Tiny("jais2", {}, "jais2"),
    "hyperclova": Tiny("hyperclovax", GRANITE),
    "solar": Tiny(
        "solar_open",
        {
            **{"n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "head_dim": 16},
            "routed_scaling_factor": 1.5,
        },
    ),
    "mellum": Tiny(
        "mellum",
        {
            **{**MIXTURE, "head_dim": 16, "sliding_window": WINDOW, "mlp_layer_types": ["dense"] + ["sparse"] * 3},
            **{"layer_types": (["sliding_attention"] * 3 + ["full_attention"]), "norm_topk_prob": True},
            "rope_parameters": {"full_attention": YARN, "sliding_attention": PLAIN},
        },
    ),
    "olmo": Tiny("olmo", {}, "olmo", {"attention.layer_norm_epsilon": 1e-5}, LLAMA_LIKE),
    "flexolmo": Tiny("flex_olmo", {"num_experts": 4, "num_experts_per_tok": 2}, seed=2),
    "vaultgemma": Tiny("vaultgemma", {"head_dim": 16, "sliding_window": WINDOW}, norm_offset=1.0),
    "nanochat": Tiny("nanochat"),
    "hunyuan3": Tiny("hy_v3", {**MIXTURE, "head_dim": 16, "num_experts": 8, "router_scaling_factor": 1.5}),
    "minicpm3": Tiny(
        "minicpm3",
        {
            **{"num_key_value_heads": 4, "kv_lora_rank": 32, "q_lora_rank": 48, "v_head_dim": 48, "scale_emb": 3.0},
            **{"qk_rope_head_dim": 16, "qk_nope_head_dim": 32, "scale_depth": 1.4, "dim_model_base": 32},
        },
    ),
    "youtu": Tiny(
        "youtu",
        {
            **{"num_key_value_heads": 4, "kv_lora_rank": 32, "q_lora_rank": 48, "v_head_dim": 48},
            **{"qk_rope_head_dim": 16, "qk_nope_head_dim": 32},
        },
    ),
}

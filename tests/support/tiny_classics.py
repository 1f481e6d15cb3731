"""Tiny checkpoints of models of earlier years, whose positions are mostly learned."""

from collections.abc import Mapping

from tests.support.tiny_kinds import CONTEXT, LAYERS, Tiny

GPT2 = {"n_embd": 64, "n_layer": LAYERS, "n_head": 4, "n_inner": 96, "n_positions": CONTEXT}
FALCON = {"ffn_hidden_size": 96, "layer_norm_epsilon": 1e-5}
APART = {"num_key_value_heads": 4}
CLASSICS: Mapping[str, Tiny] = {
    "gpt2": Tiny("gpt2", {**GPT2, **APART}, "gpt2"),
    "gpt_bigcode": Tiny(
        "gpt_bigcode", {**GPT2, "activation_function": "gelu"}, "starcoder", {"attention.head_count_kv": 1}
    ),
    "gpt_neox": Tiny("gpt_neox", {**APART, "rotary_pct": 0.5}, "gptneox", {"rope.dimension_count": 8}),
    "gpt_neox, one behind the other": Tiny("gpt_neox", {**APART, "use_parallel_residual": False}),
    "gptj": Tiny("gptj", {**GPT2, **APART, "rotary_dim": 8}),
    "falcon": Tiny(
        "falcon",
        {**FALCON, "new_decoder_architecture": True, "num_kv_heads": 2},
        "falcon",
        {"feed_forward_length": 96, "attention.head_count_kv": 2},
    ),
    "falcon, one norm": Tiny("falcon", {**FALCON, "num_key_value_heads": 1}, "falcon", {"attention.head_count_kv": 1}),
    "falcon, one behind the other": Tiny(
        "falcon", {**FALCON, **APART, "multi_query": False, "parallel_attn": False, "bias": True}
    ),
    "opt": Tiny("opt", {**APART, "ffn_dim": 96, "word_embed_proj_dim": 64, "init_std": 0.2}),
}

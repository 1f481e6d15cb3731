"""Tiny checkpoints of models of earlier years, whose positions are mostly learned."""

from collections.abc import Mapping

from tests.support.tiny_kinds import CONTEXT, LAYERS, Tiny

GPT2 = {"n_embd": 64, "n_layer": LAYERS, "n_head": 4, "n_inner": 96, "n_positions": CONTEXT}
APART = {"num_key_value_heads": 4}
CLASSICS: Mapping[str, Tiny] = {
    "gpt2": Tiny("gpt2", {**GPT2, **APART}, "gpt2"),
    "gpt_bigcode": Tiny(
        "gpt_bigcode", {**GPT2, "activation_function": "gelu"}, "starcoder", {"attention.head_count_kv": 1}
    ),
    "gpt_neox": Tiny("gpt_neox", {**APART, "rotary_pct": 0.5}, "gptneox", {"rope.dimension_count": 8}),
    "gpt_neox, one behind the other": Tiny("gpt_neox", {**APART, "use_parallel_residual": False}),
    "opt": Tiny("opt", {**APART, "ffn_dim": 96, "word_embed_proj_dim": 64, "init_std": 0.2}),
}

"""DeepSeek V2 and V3, and Kimi K2: latent attention, experts from the best groups, and shared ones."""

import math
from dataclasses import replace
from typing import Any

from polyfleet.graph.kernel_graph import KernelGraph
from polyfleet.graph.ops import Route
from polyfleet.models import names
from polyfleet.models.architecture import Architecture
from polyfleet.models.config import ModelConfig
from polyfleet.models.fields import Fields
from polyfleet.models.folder import check_activation, read_sizes
from polyfleet.models.folder_rope import read_rope, rope_section
from polyfleet.models.gguf_keys import GgufKeys, take_drafts
from polyfleet.models.latent import LatentConfig, attention
from polyfleet.models.mixture import check_route, mlp
from polyfleet.models.recorder import Recorder
from polyfleet.models.rope import yarn_amplitude

METHODS = {"greedy": 1, "group_limited_greedy": 1, "noaux_tc": 2}  # and how many of its best a group counts as much as
SIGMOID = 2  # of GGUF's gating functions


def record(config: LatentConfig, model: Recorder) -> KernelGraph:
    """The usual decoder with these parts."""
    return model.pre_norm_decoder(
        lambda layer, x: attention(config, model, x), lambda layer, x: mlp(config, model, layer, x)
    )


def _read(fields: Fields, route: Route, **more: Any) -> LatentConfig:
    """What both versions state alike."""
    check_activation(fields)
    rope_width, plain = fields.count("qk_rope_head_dim", 64), fields.count("qk_nope_head_dim", 128)
    if not fields.flag("rope_interleave", True):
        raise fields.error("rope_interleave = false is not supported: pairs that turn must be neighbours")
    sizes = read_sizes(fields, context_length=4096, rope=read_rope(fields, rope_width))
    sizes["head_dim"] = rope_width
    fields.count("head_dim", rope_width), fields.count("qk_head_dim", rope_width + plain)
    dense = min(fields.count("first_k_dense_replace", 0, minimum=0), sizes["num_layers"])
    step = fields.count("moe_layer_freq", 1)
    shared = fields.count("n_shared_experts", 0, minimum=0)
    size = fields.count("moe_intermediate_size")
    return LatentConfig(
        **sizes,
        **more,
        route=route,
        expert_size=size,
        shared_size=shared * size,
        dense=tuple(each for each in range(sizes["num_layers"]) if each < dense or each % step),
        draft_layers=fields.count("num_nextn_predict_layers", 0, minimum=0),
        attention_bias=fields.flag("attention_bias", False),
        latent_width=fields.count("kv_lora_rank", 512),
        query_rank=fields.count("q_lora_rank", 0, minimum=0),
        plain_width=plain,
        value_width=fields.count("v_head_dim", 128),
        attention_scale=(plain + rope_width) ** -0.5 * _stretch(fields) ** 2,
    )


def _stretch(fields: Fields) -> float:
    """By how much the context's stretching sharpens attention."""
    section = rope_section(fields)
    if section.text("rope_type", section.text("type", "default")) == "default" or not section.has("mscale_all_dim"):
        return 1.0
    return yarn_amplitude(section.positive("factor"), section.number("mscale_all_dim", 0, 1e6))


def read_grouped_route(fields: Fields, method: str, *, sigmoid: bool, renormalise: bool, scale: float) -> Route:
    """Of a config.json. Raises ModelFileError for a method that is not known."""
    if method not in METHODS:
        raise fields.error(f"topk_method {method!r} is not supported (supported: {', '.join(METHODS)})")
    name = next((each for each in ("num_experts", "num_local_experts") if fields.has(each)), "n_routed_experts")
    experts, top_k = fields.count(name, maximum=4096), fields.count("num_experts_per_tok")
    groups, top = fields.count("n_group", 1), fields.count("topk_group", 1)
    if method == "greedy":
        groups = top = 1
    best = min(METHODS[method], experts // groups)
    check_route(fields, experts, top_k, groups, top)
    return Route(
        experts, top_k, sigmoid, renormalise, fields.positive("routed_scaling_factor", scale), groups, top, best
    )


def _read_folder2(fields: Fields) -> ModelConfig:
    if fields.text("scoring_func", "softmax") != "softmax":
        raise fields.error("scoring_func must be 'softmax' in this architecture")
    method = fields.text("topk_method", "greedy")
    return _read(fields, read_grouped_route(fields, method, sigmoid=False, renormalise=False, scale=1.0))


def _read_folder3(fields: Fields) -> ModelConfig:
    if fields.text("scoring_func", "sigmoid") != "sigmoid":
        raise fields.error("scoring_func must be 'sigmoid' in this architecture")
    method, renormalise = fields.text("topk_method", "noaux_tc"), fields.flag("norm_topk_prob", True)
    return _read(
        fields, read_grouped_route(fields, method, sigmoid=True, renormalise=renormalise, scale=2.5), correction=True
    )


def _read_gguf(keys: GgufKeys) -> ModelConfig:
    sizes, fields = keys.sizes(), keys.fields
    turning = 2 * len(sizes["inverse_frequencies"])
    width = fields.count("attention.key_length_mla", sizes["head_dim"])
    value_width = fields.count("attention.value_length_mla", fields.count("attention.value_length", width))
    sharper = (
        1
        + fields.number("rope.scaling.yarn_log_multiplier", 0, 1e6)
        * math.log(fields.positive("rope.scaling.factor", 1.0))
        if fields.has("rope.scaling.yarn_log_multiplier")
        else 1.0
    )
    drafts = take_drafts(keys, sizes)
    sizes |= {"head_dim": turning, "rope_amplitude": 1.0}
    size, shared = fields.count("expert_feed_forward_length"), fields.count("expert_shared_count", 0, minimum=0)
    return LatentConfig(
        **sizes,
        route=read_gguf_grouped_route(fields),
        expert_size=size,
        shared_size=shared * size,
        correction=any(name.endswith("exp_probs_b.bias") for name in keys.tensors),
        dense=tuple(range(fields.count("leading_dense_block_count", 0, minimum=0))),
        draft_layers=drafts,
        latent_width=fields.count("attention.kv_lora_rank"),
        query_rank=fields.count("attention.q_lora_rank", 0, minimum=0),
        plain_width=width - turning,
        value_width=value_width,
        attention_scale=width**-0.5 * sharper**2,
    )


def read_gguf_grouped_route(fields: Fields, *, sigmoid: bool = False, renormalise: bool = False) -> Route:
    """Of a GGUF file, which may leave out whether scores are sigmoids and shares sum up to 1. Raises ModelFileError."""
    usual = SIGMOID if sigmoid else 1
    experts, top_k = fields.count("expert_count"), fields.count("expert_used_count")
    sigmoid = fields.count("expert_gating_func", usual, minimum=0) == SIGMOID
    groups, top = fields.count("expert_group_count", 1), fields.count("expert_group_used_count", 1)
    check_route(fields, experts, top_k, groups, top)
    return Route(
        *(experts, top_k, sigmoid, fields.flag("expert_weights_norm", renormalise)),
        *(fields.positive("expert_weights_scale", 1.0), groups, top),
        min(2 if sigmoid else 1, experts // groups),
    )


SHARED = {
    "mlp.gate.e_score_correction_bias": "correction.bias",
    "mlp.shared_experts.gate_proj": "shared.gate",
    "mlp.shared_experts.up_proj": "shared.up",
    "mlp.shared_experts.down_proj": "shared.down",
}
LATENT_LAYER = {
    "self_attn.q_proj": "q_nope q_rope",
    "self_attn.q_a_proj": "q_a",
    "self_attn.q_a_layernorm": "q_a_norm",
    "self_attn.q_b_proj": "q_nope q_rope",
    "self_attn.kv_a_proj_with_mqa": "kv_a k_rope",
    "self_attn.kv_a_layernorm": "kv_a_norm",
    "self_attn.kv_b_proj": "k_up v_up",
}
GGUF_SHARED = {
    "exp_probs_b": "correction",
    "ffn_gate_shexp": "shared.gate",
    "ffn_up_shexp": "shared.up",
    "ffn_down_shexp": "shared.down",
}
_GGUF_LAYER = {
    **GGUF_SHARED,
    "attn_q": "q_nope q_rope",
    "attn_q_a": "q_a",
    "attn_q_a_norm": "q_a_norm",
    "attn_q_b": "q_nope q_rope",
    "attn_kv_a_mqa": "kv_a k_rope",
    "attn_kv_a_norm": "kv_a_norm",
    "attn_kv_b": "k_up v_up",
    "attn_k_b": "k_up",
    "attn_v_b": "v_up",
}

DEEPSEEK3 = Architecture(
    name="deepseek3",
    title="DeepSeek V3 and R1, Kimi K2",
    classes=("DeepseekV3ForCausalLM", "KimiK2ForCausalLM"),
    model_types=("deepseek_v3", "kimi_k2"),
    gguf=("deepseek2",),
    read_folder=_read_folder3,
    read_gguf=_read_gguf,
    record=record,
    folder_names=names.folder({**names.EXPERTS, **SHARED, **LATENT_LAYER}, interleaved=True),
    gguf_names=names.gguf({**names.GGUF_EXPERTS, **_GGUF_LAYER}, interleaved=True),
    sparse=True,
    notes="layers that draft are not loaded",
)
DEEPSEEK2 = replace(
    DEEPSEEK3,
    name="deepseek2",
    title="DeepSeek V2",
    classes=("DeepseekV2ForCausalLM",),
    model_types=("deepseek_v2",),
    gguf=(),
    read_folder=_read_folder2,
    notes="GGUF files are read as those of V3, and say what differs",
)

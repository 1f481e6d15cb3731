"""Qwen 3 Next and Qwen 3.5: most layers keep a state by the gated delta rule in the place of a cache, the others attend
with a gate on what they found; experts with a shared one, or one MLP."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from polyfleet.graph.kernel_graph import KernelGraph
from polyfleet.graph.ops import DeltaRule, Route
from polyfleet.models import names
from polyfleet.models.architecture import TensorNames
from polyfleet.models.config import ModelConfig
from polyfleet.models.fields import Fields
from polyfleet.models.folder import FULL, check_activation, read_sizes
from polyfleet.models.folder_rope import read_rope, rope_section
from polyfleet.models.gguf_keys import GgufKeys, take_drafts
from polyfleet.models.mixture import MixtureConfig, mlp, read_dense, read_gguf_route, read_route
from polyfleet.models.qwen2_moe import GGUF_SHARED, QWEN2_MOE, SHARED
from polyfleet.models.recorder import Recorder

LINEAR = "linear_attention"
NOTES = "a sequence keeps a state, so no prefix is read twice; layers that draft are not loaded"
TURNING = 0.25  # of a head, where files say nothing
SECTIONED = ("mrope_section", "mrope_interleaved")  # positions of images, which for texts are all the same


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaConfig(MixtureConfig):
    """`recurrent`: which layers keep a state. Where all layers are `dense` there are no experts."""

    recurrent: tuple[bool, ...]
    taps: int  # of the convolution
    key_heads: int
    value_heads: int
    key_width: int
    value_width: int
    turns: bool = False  # whether heads of values take turns at those of keys; else neighbours share one

    @property
    def grouped(self) -> Mapping[str, tuple[tuple[int, ...], ...]]:
        """By the first of several weights in one tensor: the rows of each that it has for every head of keys."""
        group = self.value_heads // self.key_heads
        values = group * self.value_width
        return {
            "delta_qkv": ((self.key_width, self.key_width, values), (values,)),
            "delta_rate": ((group,), (group,)),
        }


def record(config: DeltaConfig, model: Recorder) -> KernelGraph:
    """The usual decoder with these parts."""
    rope = model.rope()

    def attend(layer: int, x: int) -> int:
        if config.recurrent[layer]:
            return delta_net(config, model, x)
        return model.attention(x, rope, head_norms=True, gated=True)

    return model.pre_norm_decoder(attend, lambda layer, x: mlp(config, model, layer, x))


def delta_net(config: DeltaConfig, model: Recorder, x: int) -> int:
    """A convolution over the last rows, the gated delta rule, and a gated norm of each head."""
    graph, values = model.graph, config.value_heads * config.value_width
    heads = config.key_heads, config.value_heads, config.key_width, config.value_width
    mixed = model.linear(x, "delta_qkv", 2 * config.key_heads * config.key_width + values)
    mixed = graph.silu(model.causal_conv(mixed, "delta_conv", config.taps))
    gates = model.linears(x, ("delta_rate", "delta_fade"), config.value_heads)
    rule = DeltaRule(0, *heads, config.turns)
    kept = model.delta_rule(mixed, gates, ("delta_decay", "delta_shift"), rule)
    normed = model.norm(kept, "delta_gain", config.value_width, narrow=True)
    gated = graph.mul(graph.silu(model.linear(x, "delta_gate", values)), normed)
    return model.linear(gated, "delta_out", config.hidden_size)


def _read(fields: Fields, mixture: Mapping[str, Any] | None = None) -> DeltaConfig:
    """What both generations state alike; without `mixture` no layer has experts."""
    check_activation(fields)
    if not fields.flag("attn_output_gate", True) or fields.flag("attention_bias", False):
        raise fields.error("attention without a gate, or with biases, is not supported by this architecture")
    if fields.text("mamba_ssm_dtype", "float32") != "float32":
        raise fields.error("mamba_ssm_dtype must be float32: states are")
    head_dim = fields.count("head_dim", 256)
    stated = rope_section(fields)
    section = replace(stated, values={key: each for key, each in stated.values.items() if key not in SECTIONED})
    rope = read_rope(fields, head_dim, partial=TURNING, section=section)
    if mixture is not None and not fields.has("intermediate_size"):  # files of mixtures alone may leave it out
        fields = replace(fields, values={**fields.values, "intermediate_size": fields.count("moe_intermediate_size")})
    sizes = read_sizes(fields, head_dim=256, context_length=32768, rope=rope)
    fields.count("mtp_num_hidden_layers", 0, minimum=0), fields.flag("mtp_use_dedicated_embeddings", False)
    return DeltaConfig(
        **sizes,
        **(_plain(sizes) if mixture is None else mixture),
        wide_norms=True,
        recurrent=_read_kinds(fields, sizes["num_layers"]),
        taps=fields.count("linear_conv_kernel_dim", 4, minimum=2, maximum=64),
        **_read_heads(fields),
    )


def _read_kinds(fields: Fields, layers: int) -> tuple[bool, ...]:
    """Which layers are recurrent."""
    period = fields.count("full_attention_interval", 4)
    if not fields.has("layer_types"):
        return tuple((layer + 1) % period != 0 for layer in range(layers))
    kinds = fields.items("layer_types")
    if len(kinds) != layers or not set(map(str, kinds)) <= {FULL, LINEAR}:
        raise fields.error(f"layer_types must name {FULL} or {LINEAR} for each of {layers} layers")
    return tuple(kind == LINEAR for kind in kinds)


def _read_heads(fields: Fields) -> dict[str, Any]:
    keys, values = fields.count("linear_num_key_heads", 16), fields.count("linear_num_value_heads", 32)
    if values % keys:
        raise fields.error(f"{values} heads of values can't share {keys} heads of keys evenly")
    return {
        "key_heads": keys,
        "value_heads": values,
        "key_width": fields.count("linear_key_head_dim", 128),
        "value_width": fields.count("linear_value_head_dim", 128),
    }


def _read_mixture(fields: Fields, *, experts: int, top_k: int) -> dict[str, Any]:
    values = {"num_experts": experts, **fields.values}
    return {
        "route": read_route(
            replace(fields, values=values),
            experts=("num_experts",),
            renormalise=fields.flag("norm_topk_prob", True),
            top_k=top_k,
        ),
        "expert_size": fields.count("moe_intermediate_size", 512),
        "shared_size": fields.count("shared_expert_intermediate_size", 512),
        "shared_gate": True,
        "dense": read_dense(fields, fields.count("num_hidden_layers", maximum=4096)),
    }


def _read_next(fields: Fields) -> ModelConfig:
    return _read(fields, _read_mixture(fields, experts=512, top_k=10))


def _read_35(fields: Fields) -> ModelConfig:
    return _read(fields)


def _read_35_moe(fields: Fields) -> ModelConfig:
    if not fields.flag("norm_topk_prob", True):
        raise fields.error("norm_topk_prob must be true in this architecture")
    return _read(fields, _read_mixture(fields, experts=256, top_k=8))


def _read_gguf(keys: GgufKeys) -> ModelConfig:
    sizes = keys.sizes()
    return _of_gguf(keys, sizes, _gguf_mixture(keys))


def _read_gguf_35(keys: GgufKeys) -> ModelConfig:
    """llama.cpp's converter has heads of values take turns."""
    sizes, sections = keys.sizes(), "rope.dimension_sections"
    if keys.fields.has(sections):
        keys.fields.items(sections)  # axes of images, which for texts are all the same
    drafts = take_drafts(keys, sizes)
    mixture = _gguf_mixture(keys) if keys.fields.has("expert_count") else _plain(sizes)
    return _of_gguf(keys, sizes, mixture, draft_layers=drafts, turns=True)


def _plain(sizes: dict[str, Any]) -> dict[str, Any]:
    """No layer has experts."""
    return {"route": Route(1, 1), "expert_size": 1, "dense": tuple(range(sizes["num_layers"]))}


def _gguf_mixture(keys: GgufKeys) -> dict[str, Any]:
    size = keys.fields.count("expert_feed_forward_length")
    return {
        "route": read_gguf_route(keys, renormalise=True),
        "expert_size": size,
        "shared_size": keys.fields.count("expert_shared_feed_forward_length", size),
        "shared_gate": True,
    }


def _of_gguf(keys: GgufKeys, sizes: dict[str, Any], mixture: Mapping[str, Any], **more: Any) -> DeltaConfig:
    """Layers that keep a state are those that have its weights."""
    fields = keys.fields
    fields.count("full_attention_interval", 4)  # which the tensors say too
    heads = fields.count("ssm.time_step_rank")
    return DeltaConfig(
        **sizes,
        **mixture,
        **more,
        wide_norms=True,
        recurrent=tuple(keys.has(f"blk.{layer}.ssm_out.weight") for layer in range(sizes["num_layers"])),
        taps=fields.count("ssm.conv_kernel", minimum=2, maximum=64),
        key_heads=fields.count("ssm.group_count"),
        value_heads=heads,
        key_width=fields.count("ssm.state_size"),
        value_width=max(1, fields.count("ssm.inner_size") // heads),
    )


_LAYER = {
    "self_attn.q_proj": "q attention_gate",
    "linear_attn.conv1d": "delta_conv",
    "linear_attn.A_log": "delta_decay",
    "linear_attn.dt_bias": "delta_shift",
    "linear_attn.norm": "delta_gain",
    "linear_attn.out_proj": "delta_out",
}
_APART = {
    "linear_attn.in_proj_qkv": "delta_qkv",
    "linear_attn.in_proj_z": "delta_gate",
    "linear_attn.in_proj_b": "delta_rate",
    "linear_attn.in_proj_a": "delta_fade",
}
_BY_HEADS = {"linear_attn.in_proj_qkvz": "delta_qkv delta_gate", "linear_attn.in_proj_ba": "delta_rate delta_fade"}

_GGUF_LAYER = {
    "post_attention_norm": "mlp_norm",
    "attn_q": "q attention_gate",
    "attn_qkv": "delta_qkv",
    "attn_gate": "delta_gate",
    "ssm_ba": "delta_rate delta_fade",
    "ssm_beta": "delta_rate",
    "ssm_alpha": "delta_fade",
    "ssm_conv1d": "delta_conv",
    "ssm_dt.bias": "delta_shift",
    "ssm_a": "delta_decay",
    "ssm_norm": "delta_gain",
    "ssm_out": "delta_out",
}


def _names(*layers: Mapping[str, str]) -> TensorNames:
    found = names.folder({key: each for layer in layers for key, each in layer.items()}, norm_offset=1.0)
    return replace(found, ignored=(*found.ignored, r"mtp\..*"))


QWEN3_NEXT = replace(
    QWEN2_MOE,
    name="qwen3next",
    title="Qwen 3 Next",
    classes=("Qwen3NextForCausalLM",),
    model_types=("qwen3_next",),
    gguf=("qwen3next",),
    read_folder=_read_next,
    read_gguf=_read_gguf,
    record=record,
    folder_names=_names(names.EXPERTS, SHARED, _LAYER, _BY_HEADS),
    gguf_names=names.gguf({**names.GGUF_EXPERTS, **GGUF_SHARED, **_GGUF_LAYER}, rates=("delta_decay",)),
    notes=NOTES,
)
QWEN3_5 = replace(
    QWEN3_NEXT,
    name="qwen3.5",
    title="Qwen 3.5",
    classes=("Qwen3_5ForCausalLM",),
    model_types=("qwen3_5_text",),
    gguf=("qwen35",),
    read_folder=_read_35,
    read_gguf=_read_gguf_35,
    folder_names=_names(_LAYER, _APART),
    sparse=False,
)
QWEN3_5_MOE = replace(
    QWEN3_5,
    name="qwen3.5moe",
    title="Qwen 3.5, mixtures of experts",
    classes=("Qwen3_5MoeForCausalLM",),
    model_types=("qwen3_5_moe_text",),
    gguf=("qwen35moe",),
    read_folder=_read_35_moe,
    folder_names=_names(names.EXPERTS, SHARED, _LAYER, _APART),
    sparse=True,
)

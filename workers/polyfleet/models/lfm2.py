"""LFM 2: most layers are short convolutions between two gates, which keep the last rows as a state; the others attend
with norms of heads. One MLP, or experts with corrected scores."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from polyfleet.graph.kernel_graph import KernelGraph
from polyfleet.graph.ops import Route
from polyfleet.models import names
from polyfleet.models.architecture import TensorNames
from polyfleet.models.config import ModelConfig
from polyfleet.models.deepseek import SIGMOID
from polyfleet.models.fields import Fields
from polyfleet.models.folder import FULL, read_sizes
from polyfleet.models.gguf_keys import GgufKeys
from polyfleet.models.llama import LLAMA
from polyfleet.models.mixture import MixtureConfig, mlp, read_gguf_route, read_route
from polyfleet.models.recorder import Recorder

CONV = "conv"  # of `layer_types`
STATED: dict[str, Any] = {"block_use_swiglu": True, "use_pos_enc": True, "conv_bias": False}  # what all of them are
SIZES = ("block_dim", "conv_dim", "conv_dim_out")  # the hidden size by other names
TRAINED = (  # how weights were made, and older names of what is read
    *("block_mlp_init_scale", "block_out_init_scale", "block_use_xavier_init", "conv_use_xavier_init"),
    *("num_heads", "block_norm_eps", "theta", "full_attn_idxs"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvConfig(MixtureConfig):
    """`recurrent`: which layers are convolutions. Where all layers are `dense` there are no experts."""

    recurrent: tuple[bool, ...]
    taps: int


def record(config: ConvConfig, model: Recorder) -> KernelGraph:
    """The usual decoder with these parts."""
    rope = model.rope()

    def mix(layer: int, x: int) -> int:
        return convolve(config, model, x) if config.recurrent[layer] else model.attention(x, rope, head_norms=True)

    return model.pre_norm_decoder(mix, lambda layer, x: mlp(config, model, layer, x))


def convolve(config: ConvConfig, model: Recorder, x: int) -> int:
    """after * conv(before * x), between two linears."""
    graph, width = model.graph, config.hidden_size
    before, after, inner = (model.linear(x, f"conv_{name}", width) for name in ("before", "after", "inner"))
    mixed = model.causal_conv(graph.mul(before, inner), "conv", config.taps)
    return model.linear(graph.mul(after, mixed), "conv_out", width)


def _read_folder(fields: Fields) -> ModelConfig:
    sizes = _sizes(fields, _inner_size(fields))
    return _config(fields, sizes, _plain(sizes))


def _read_moe(fields: Fields) -> ModelConfig:
    sizes = _sizes(fields, fields.count("intermediate_size", 7168))
    route = read_route(fields, experts=("num_experts",), renormalise=fields.flag("norm_topk_prob", True), top_k=4)
    dense = min(fields.count("num_dense_layers", 2, minimum=0), sizes["num_layers"])
    mixture = {
        "route": replace(route, sigmoid=True, scale=fields.positive("routed_scaling_factor", 1.0)),
        "correction": fields.flag("use_expert_bias", True),
        "expert_size": fields.count("moe_intermediate_size", 1792),
        "dense": tuple(range(dense)),
    }
    return _config(fields, sizes, mixture)


def _sizes(fields: Fields, inner_size: int) -> dict[str, Any]:
    """What both kinds state alike."""
    for key, value in STATED.items():
        if fields.has(key) and fields.values[key] != value:
            raise fields.error(f"{key} = {fields.values[key]!r} is not supported by this architecture: {value!r} is")
        fields.read.add(key)
    for key in SIZES:
        if fields.count(key, fields.count("hidden_size")) != fields.count("hidden_size"):
            raise fields.error(f"{key} must be the hidden_size")
    fields.read.update(TRAINED)
    tied = fields.flag("tie_embedding", fields.flag("tie_word_embeddings", True))
    stated = replace(fields, values={**fields.values, "intermediate_size": inner_size, "tie_word_embeddings": tied})
    return read_sizes(stated, context_length=128000, norm_eps=1e-5, base=1e6, eps="norm_eps")


def _config(fields: Fields, sizes: dict[str, Any], mixture: dict[str, Any]) -> ConvConfig:
    recurrent = _read_kinds(fields, sizes["num_layers"])
    return ConvConfig(
        **sizes, **mixture, recurrent=recurrent, taps=fields.count("conv_L_cache", 3, minimum=2, maximum=64)
    )


def _plain(sizes: dict[str, Any]) -> dict[str, Any]:
    """No layer has experts."""
    return {"route": Route(1, 1), "expert_size": 1, "dense": tuple(range(sizes["num_layers"]))}


def _inner_size(fields: Fields) -> int:
    """Of the MLP: as it is stated, or two thirds of it made round."""
    stated = fields.count("block_ff_dim", fields.count("intermediate_size", 12288))
    multiple, factor = fields.count("block_multiple_of", 256), fields.positive("block_ffn_dim_multiplier", 1.0)
    if not fields.flag("block_auto_adjust_ff_dim", True):
        return stated
    return -(-int(factor * int(2 * stated / 3)) // multiple) * multiple


def _read_kinds(fields: Fields, layers: int) -> tuple[bool, ...]:
    if not fields.has("layer_types"):
        attends = fields.items("full_attn_idxs") if fields.has("full_attn_idxs") else list(range(layers))
        return tuple(layer not in attends for layer in range(layers))
    kinds = fields.items("layer_types")
    if len(kinds) != layers or not set(map(str, kinds)) <= {FULL, CONV}:
        raise fields.error(f"layer_types must name {FULL} or {CONV} for each of {layers} layers")
    return tuple(kind == CONV for kind in kinds)


def _read_gguf(keys: GgufKeys) -> ModelConfig:
    sizes = _gguf_sizes(keys)
    return _of_gguf(keys, sizes, _plain(sizes))


def _read_gguf_moe(keys: GgufKeys) -> ModelConfig:
    sizes, fields = _gguf_sizes(keys), keys.fields
    fields.count("expert_gating_func", SIGMOID, minimum=SIGMOID, maximum=SIGMOID)
    mixture = {
        "route": replace(read_gguf_route(keys, renormalise=True), sigmoid=True),
        "correction": any(name.endswith("exp_probs_b.bias") for name in keys.tensors),
        "expert_size": fields.count("expert_feed_forward_length"),
        "dense": tuple(range(fields.count("leading_dense_block_count", 0, minimum=0))),
    }
    return _of_gguf(keys, sizes, mixture)


def _gguf_sizes(keys: GgufKeys) -> dict[str, Any]:
    """KV heads are stated layer by layer: 0 of convolutions."""
    fields, heads = keys.fields, "attention.head_count_kv"
    counts = fields.items(heads) if isinstance(fields.values.get(fields.prefix + heads), list) else []
    if counts:
        most = max(each if isinstance(each, int) else 0 for each in counts)
        fields = replace(fields, values={**fields.values, fields.prefix + heads: most})
    return replace(keys, fields=fields).sizes()


def _of_gguf(keys: GgufKeys, sizes: dict[str, Any], mixture: dict[str, Any]) -> ConvConfig:
    """Layers that are convolutions are those that have its weights."""
    return ConvConfig(
        **sizes,
        **mixture,
        recurrent=tuple(keys.has(f"blk.{layer}.shortconv.conv.weight") for layer in range(sizes["num_layers"])),
        taps=keys.fields.count("shortconv.l_cache", minimum=2, maximum=64),
    )


_LAYER = {
    **{"operator_norm": "attention_norm", "ffn_norm": "mlp_norm", "self_attn.out_proj": "o"},
    **{"self_attn.q_layernorm": "q_norm", "self_attn.k_layernorm": "k_norm"},
    **{"conv.in_proj": "conv_before conv_after conv_inner", "conv.conv": "conv", "conv.out_proj": "conv_out"},
    **{"feed_forward.w1": "gate", "feed_forward.w3": "up", "feed_forward.w2": "down"},
}
_EXPERTS = {
    "feed_forward.gate": "router",
    "feed_forward.expert_bias": "correction.bias",
    "feed_forward.experts.{}.w1": "experts.gate[{}]",
    "feed_forward.experts.{}.w3": "experts.up[{}]",
    "feed_forward.experts.{}.w2": "experts.down[{}]",
    "feed_forward.experts.gate_up_proj": "experts.gate experts.up",
    "feed_forward.experts.down_proj": "experts.down",
}
_GGUF_LAYER = {
    "shortconv.in_proj": "conv_before conv_after conv_inner",
    "shortconv.conv": "conv",
    "shortconv.out_proj": "conv_out",
}


def _folder_names(*more: Mapping[str, str]) -> TensorNames:
    layer = {name: each for some in (_LAYER, *more) for name, each in some.items()}
    return replace(names.folder(layer), names={**names.FOLDER, "model.embedding_norm": "norm"})


def _gguf_names(*more: Mapping[str, str]) -> TensorNames:
    layer = {name: each for some in (_GGUF_LAYER, *more) for name, each in some.items()}
    return replace(names.gguf(layer), names={**names.GGUF, "token_embd_norm": "norm"})


LFM2 = replace(
    LLAMA,
    name="lfm2",
    title="LFM 2",
    classes=("Lfm2ForCausalLM",),
    model_types=("lfm2",),
    gguf=("lfm2",),
    read_folder=_read_folder,
    read_gguf=_read_gguf,
    record=record,
    folder_names=_folder_names(),
    gguf_names=_gguf_names(),
    notes="a sequence keeps a state, so no prefix is read twice",
)
LFM2_MOE = replace(
    LFM2,
    name="lfm2moe",
    title="LFM 2, mixtures of experts",
    classes=("Lfm2MoeForCausalLM",),
    model_types=("lfm2_moe",),
    gguf=("lfm2moe",),
    read_folder=_read_moe,
    read_gguf=_read_gguf_moe,
    folder_names=_folder_names(_EXPERTS),
    gguf_names=_gguf_names(names.GGUF_EXPERTS, {"exp_probs_b": "correction"}),
    sparse=True,
)

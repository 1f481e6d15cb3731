"""LFM 2: most layers are short convolutions between two gates, which keep the last rows as a state; the others attend
with norms of heads."""

from dataclasses import dataclass, replace
from typing import Any

from polyfleet.graph.kernel_graph import KernelGraph
from polyfleet.models import names
from polyfleet.models.config import ModelConfig
from polyfleet.models.fields import Fields
from polyfleet.models.folder import FULL, read_sizes
from polyfleet.models.gguf_keys import GgufKeys
from polyfleet.models.llama import LLAMA
from polyfleet.models.recorder import Recorder

CONV = "conv"  # of `layer_types`
STATED: dict[str, Any] = {"block_use_swiglu": True, "use_pos_enc": True, "conv_bias": False}  # what all of them are
SIZES = ("block_dim", "conv_dim", "conv_dim_out")  # the hidden size by other names
TRAINED = (  # how weights were made, and older names of what is read
    *("block_mlp_init_scale", "block_out_init_scale", "block_use_xavier_init", "conv_use_xavier_init"),
    *("num_heads", "block_norm_eps", "theta", "full_attn_idxs"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvConfig(ModelConfig):
    """`recurrent`: which layers are convolutions."""

    recurrent: tuple[bool, ...]
    taps: int


def record(config: ConvConfig, model: Recorder) -> KernelGraph:
    """The usual decoder with these parts."""
    rope = model.rope()

    def mix(layer: int, x: int) -> int:
        return convolve(config, model, x) if config.recurrent[layer] else model.attention(x, rope, head_norms=True)

    return model.pre_norm_decoder(mix)


def convolve(config: ConvConfig, model: Recorder, x: int) -> int:
    """after * conv(before * x), between two linears."""
    graph, width = model.graph, config.hidden_size
    before, after, inner = (model.linear(x, f"conv_{name}", width) for name in ("before", "after", "inner"))
    mixed = model.causal_conv(graph.mul(before, inner), "conv", config.taps)
    return model.linear(graph.mul(after, mixed), "conv_out", width)


def _read_folder(fields: Fields) -> ModelConfig:
    for key, value in STATED.items():
        if fields.has(key) and fields.values[key] != value:
            raise fields.error(f"{key} = {fields.values[key]!r} is not supported by this architecture: {value!r} is")
        fields.read.add(key)
    for key in SIZES:
        if fields.count(key, fields.count("hidden_size")) != fields.count("hidden_size"):
            raise fields.error(f"{key} must be the hidden_size")
    fields.read.update(TRAINED)
    tied = fields.flag("tie_embedding", fields.flag("tie_word_embeddings", True))
    values = {**fields.values, "intermediate_size": _inner_size(fields), "tie_word_embeddings": tied}
    sizes = read_sizes(replace(fields, values=values), context_length=128000, norm_eps=1e-5, base=1e6, eps="norm_eps")
    return ConvConfig(
        **sizes,
        recurrent=_read_kinds(fields, sizes["num_layers"]),
        taps=fields.count("conv_L_cache", 3, minimum=2, maximum=64),
    )


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
    """Layers without KV heads are convolutions."""
    fields, heads = keys.fields, "attention.head_count_kv"
    counts = fields.items(heads) if isinstance(fields.values.get(fields.prefix + heads), list) else []
    if counts:
        most = max(each if isinstance(each, int) else 0 for each in counts)
        fields = replace(fields, values={**fields.values, fields.prefix + heads: most})
    sizes = replace(keys, fields=fields).sizes()
    return ConvConfig(
        **sizes,
        recurrent=tuple(keys.has(f"blk.{layer}.shortconv.conv.weight") for layer in range(sizes["num_layers"])),
        taps=fields.count("shortconv.l_cache", minimum=2, maximum=64),
    )


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
    folder_names=replace(
        names.folder(
            {
                "operator_norm": "attention_norm",
                "ffn_norm": "mlp_norm",
                "self_attn.q_layernorm": "q_norm",
                "self_attn.k_layernorm": "k_norm",
                "self_attn.out_proj": "o",
                "conv.in_proj": "conv_before conv_after conv_inner",
                "conv.conv": "conv",
                "conv.out_proj": "conv_out",
                "feed_forward.w1": "gate",
                "feed_forward.w3": "up",
                "feed_forward.w2": "down",
            }
        ),
        names={**names.FOLDER, "model.embedding_norm": "norm"},
    ),
    gguf_names=replace(
        names.gguf(
            {
                "shortconv.in_proj": "conv_before conv_after conv_inner",
                "shortconv.conv": "conv",
                "shortconv.out_proj": "conv_out",
            }
        ),
        names={**names.GGUF, "token_embd_norm": "norm"},
    ),
    notes="dense models; a sequence keeps a state, so no prefix is read twice",
)

"""Llama 4, text: experts whose input is weighed, one that all rows go through, layers that know no positions.

Layers that turn attend within chunks of positions, and queries of the others grow from a position on: up to where
either begins, which is how far a context may be, they do neither.
"""

from dataclasses import dataclass, replace
from typing import Any

from polyfleet.graph.kernel_graph import KernelGraph
from polyfleet.graph.ops import Route
from polyfleet.models import names
from polyfleet.models.config import ModelConfig
from polyfleet.models.fields import Fields
from polyfleet.models.folder import check_activation, read_sizes
from polyfleet.models.gguf_keys import GgufKeys
from polyfleet.models.mixture import MAX_EXPERTS, MixtureConfig, check_route, read_gguf_route
from polyfleet.models.qwen3_moe import QWEN3_MOE
from polyfleet.models.recorder import Recorder

PERIOD = 4  # the last of so many layers knows no positions
CHUNK = 8192  # positions, of files that say nothing
NORMLESS = 128  # experts of the model whose heads have no norms, which GGUF files don't state otherwise
CHUNKED, FULL = "chunked_attention", "full_attention"


@dataclass(frozen=True, slots=True, kw_only=True)
class Llama4Config(MixtureConfig):
    """`turning`: in which layers heads turn. `head_norms`: whether those have norms without weights."""

    turning: tuple[bool, ...]
    head_norms: bool


def record(config: Llama4Config, model: Recorder) -> KernelGraph:
    """The usual decoder with these parts. A norm without weights is the same before and behind a rotation."""
    ropes, bias, route, graph = (model.rope(()), model.rope()), config.attention_bias, config.route, model.graph

    def attend(layer: int, x: int) -> int:
        turning = config.turning[layer]

        def prepare(each: int, _name: str) -> int:
            normed = model.unit_norm(each, config.head_dim) if turning and config.head_norms else each
            return graph.rope(normed, ropes[turning])

        return model.attention(x, ropes[turning], bias=bias, output_bias=bias, prepare=prepare)

    def mlp(layer: int, x: int) -> int:
        if layer in config.dense:
            return model.gated_mlp(x)
        shares = model.router(x, route)
        y = model.experts(x, shares, route.experts, config.expert_size, route.top_k, early=True)
        return graph.add(y, model.gated_mlp(x, names="shared.", size=config.shared_size))

    return model.pre_norm_decoder(attend, mlp)


def _read_folder(fields: Fields) -> ModelConfig:
    check_activation(fields)
    size = fields.count("intermediate_size")
    stated = replace(
        fields, values={**fields.values, "intermediate_size": fields.count("intermediate_size_mlp", 16384)}
    )
    sizes = read_sizes(stated, head_dim=128, context_length=131072, norm_eps=1e-5, base=500000.0)
    layers = sizes["num_layers"]
    turning = _read_turning(fields, layers)
    experts, chosen = fields.count("num_local_experts", 16, maximum=MAX_EXPERTS), fields.count("num_experts_per_tok", 1)
    check_route(fields, experts, chosen)
    return Llama4Config(
        **{**sizes, "context_length": min(sizes["context_length"], _unchanged(fields, turning))},
        attention_bias=fields.flag("attention_bias", False),
        turning=turning,
        head_norms=fields.flag("use_qk_norm", True),
        route=Route(experts, chosen, sigmoid=True, renormalise=False),
        expert_size=size,
        shared_size=size,
        dense=_read_dense(fields, layers),
    )


def _read_turning(fields: Fields, layers: int) -> tuple[bool, ...]:
    """By numbers for each layer, 0 where heads don't turn; `layer_types` has to agree."""
    period = fields.count("no_rope_layer_interval", PERIOD)
    stated = fields.items("no_rope_layers") if fields.has("no_rope_layers") else []
    turning = tuple(map(bool, stated)) or tuple((layer + 1) % period != 0 for layer in range(layers))
    if len(turning) != layers:
        raise fields.error(f"no_rope_layers must have a number for each of {layers} layers")
    if fields.has("layer_types"):
        chunked = fields.has("attention_chunk_size") or "attention_chunk_size" not in fields.values
        kinds = [CHUNKED if turns and chunked else FULL for turns in turning]
        if fields.items("layer_types") != kinds:
            raise fields.error(
                f"layer_types must name {CHUNKED} for the layers of no_rope_layers that turn, else {FULL}"
            )
    return turning


def _read_dense(fields: Fields, layers: int) -> tuple[int, ...]:
    """Layers without experts."""
    step = fields.count("interleave_moe_layer_step", 1)
    sparse = set(fields.items("moe_layers")) if fields.has("moe_layers") else set(range(step - 1, layers, step))
    if not sparse <= set(range(layers)):
        raise fields.error(f"moe_layers must be some of 0 to {layers - 1}")
    return tuple(layer for layer in range(layers) if layer not in sparse)


def _unchanged(fields: Fields, turning: tuple[bool, ...]) -> int:
    """How many positions there are before chunks end or queries grow."""
    stated = fields.has("attention_chunk_size") or "attention_chunk_size" not in fields.values
    length = fields.count("attention_chunk_size", CHUNK) if stated and any(turning) else 2**31
    floor = fields.count("floor_scale", CHUNK)
    fields.read.update(("attn_scale", "attn_temperature_tuning", "for_llm_compressor"))
    grows = fields.values.get("attn_temperature_tuning", True) and not all(turning)
    return min(length, floor - 1) if grows else length


def _read_gguf(keys: GgufKeys) -> ModelConfig:
    sizes, fields = keys.sizes(), keys.fields
    layers, size = sizes["num_layers"], fields.count("expert_feed_forward_length")
    turning = tuple((layer + 1) % PERIOD != 0 for layer in range(layers))
    chunk = fields.count("attention.sliding_window", CHUNK)
    step = fields.count("interleave_moe_layer_step", 1)
    route = replace(read_gguf_route(keys, renormalise=False), sigmoid=True)
    length = min(sizes["context_length"], chunk, CHUNK - 1)
    return Llama4Config(
        **{**sizes, "context_length": length},
        turning=turning,
        head_norms=route.experts != NORMLESS,
        route=route,
        expert_size=size,
        shared_size=size,
        dense=tuple(layer for layer in range(layers) if (layer + 1) % step),
    )


def _names() -> Any:
    experts = {name.replace("mlp.", "feed_forward."): each for name, each in names.EXPERTS.items()}
    parts = {f"{part}_proj": part for part in ("gate", "up", "down")}
    return {
        **{**experts, "feed_forward.router": "router"},
        **{f"feed_forward.{name}": part for name, part in parts.items()},
        **{f"feed_forward.shared_expert.{name}": f"shared.{part}" for name, part in parts.items()},
    }


_GGUF_SHARED = {f"ffn_{part}_shexp": f"shared.{part}" for part in ("gate", "up", "down")}

LLAMA4 = replace(
    QWEN3_MOE,
    name="llama4",
    title="Llama 4",
    classes=("Llama4ForCausalLM",),
    model_types=("llama4_text",),
    gguf=("llama4",),
    read_folder=_read_folder,
    read_gguf=_read_gguf,
    record=record,
    folder_names=replace(names.folder(_names(), interleaved=True), turned_stacks=True),
    gguf_names=names.gguf({**names.GGUF_EXPERTS, **_GGUF_SHARED}, interleaved=True),
    notes="text, up to where chunks of attention end: 8191 tokens of the published models",
)

"""What mixtures of experts have in common: their facts, how files state them, and the recording of their MLPs."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from polyfleet.graph.ops import Route
from polyfleet.models.config import ModelConfig
from polyfleet.models.fields import Fields
from polyfleet.models.gguf_keys import GgufKeys
from polyfleet.models.recorder import Recorder

MAX_EXPERTS = 4096
MAX_SCALE = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class MixtureConfig(ModelConfig):
    """`dense`: layers that have one MLP, of the configuration's size, in the place of experts."""

    route: Route
    expert_size: int
    shared_size: int = 0  # of the MLP that all rows go through too; 0: none
    shared_gate: bool = False  # whether that one has a gate of its own
    correction: bool = False  # whether scores are corrected before they choose
    dense: tuple[int, ...] = ()


def mlp(config: MixtureConfig, model: Recorder, layer: int, x: int) -> int:
    """A layer's experts and what is shared, or its MLP."""
    if layer in config.dense:
        return model.gated_mlp(x)
    route, graph = config.route, model.graph
    y = model.experts(
        x, model.router(x, route, correction=config.correction), route.experts, config.expert_size, route.top_k
    )
    if not config.shared_size:
        return y
    if not config.shared_gate:
        return graph.add(y, model.gated_mlp(x, names="shared.", size=config.shared_size))
    share = graph.route(model.linear(x, "shared.router", 1), Route(1, 1, sigmoid=True, renormalise=False))
    return graph.add(y, model.experts(x, share, 1, config.shared_size, 1, names="shared."))


def read_route(fields: Fields, *, experts: tuple[str, ...], renormalise: bool, top_k: int) -> Route:
    """Of a config.json, as softmaxes of all experts; the number of experts stands under one of several names."""
    name = next((each for each in experts if fields.has(each)), experts[0])
    count = fields.count(name, maximum=MAX_EXPERTS)
    chosen = fields.count("num_experts_per_tok", top_k)
    check_route(fields, count, chosen)
    return Route(count, chosen, renormalise=renormalise)


def read_gguf_route(keys: GgufKeys, *, renormalise: bool) -> Route:
    """Of a GGUF file, which seldom says whether shares sum up to 1."""
    fields = keys.fields
    count, chosen = fields.count("expert_count", maximum=MAX_EXPERTS), fields.count("expert_used_count")
    check_route(fields, count, chosen)
    scale = fields.number("expert_weights_scale", 0, MAX_SCALE) if fields.has("expert_weights_scale") else 1.0
    return Route(
        count,
        chosen,
        renormalise=fields.flag("expert_weights_norm", renormalise),
        scale=scale or 1.0,  # 0 says that there is none
    )


def check_route(fields: Fields, experts: int, top_k: int, groups: int = 1, top_groups: int = 1) -> None:
    """Raise ModelFileError for more experts than there are."""
    if top_k > experts:
        raise fields.error(f"a row can't go to {top_k} of {experts} experts")
    if experts % groups or top_groups > groups or top_k > experts // groups * top_groups:
        raise fields.error(f"{experts} experts in {groups} groups, of which {top_groups} count, can't give {top_k}")


def read_dense_kinds(fields: Fields, layers: int, otherwise: tuple[int, ...]) -> tuple[int, ...]:
    """Layers without experts, as `mlp_layer_types` names them, or else `otherwise`."""
    if not fields.has("mlp_layer_types"):
        return otherwise
    kinds = fields.items("mlp_layer_types")
    if len(kinds) != layers or not set(map(str, kinds)) <= {"dense", "sparse"}:
        raise fields.error(f"mlp_layer_types must name dense or sparse for each of {layers} layers")
    return tuple(layer for layer, kind in enumerate(kinds) if kind == "dense")


def read_dense(fields: Fields, layers: int) -> tuple[int, ...]:
    """Layers without experts, as Qwen's files state them."""
    step = fields.count("decoder_sparse_step", 1)
    named: Collection[Any] = fields.items("mlp_only_layers") if fields.has("mlp_only_layers") else ()
    return tuple(layer for layer in range(layers) if layer in named or (layer + 1) % step)

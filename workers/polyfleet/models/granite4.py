"""Granite 4: Granite 3's layers, of which most keep Mamba 2's state in the place of a cache; heads of the others may
not turn. One MLP that all rows go through, beside experts or alone."""

from dataclasses import dataclass, replace
from typing import Any

from polyfleet.graph.kernel_graph import KernelGraph
from polyfleet.graph.ops import Route
from polyfleet.models import mamba2, names
from polyfleet.models.config import ModelConfig
from polyfleet.models.fields import Fields
from polyfleet.models.folder import FULL
from polyfleet.models.gguf_keys import GgufKeys
from polyfleet.models.granite import EXPERTS, GRANITE_MOE, GraniteMoeConfig, gguf_scaled, read_scaled
from polyfleet.models.mamba2 import Mamba2
from polyfleet.models.minicpm import scaled_attention, scaled_decoder
from polyfleet.models.mixture import mlp, read_gguf_route, read_route
from polyfleet.models.recorder import Recorder

ATTENDS, RECURRENT = ("attention", FULL), ("mamba", "linear_attention")  # of `layer_types`
TURNS = ("rope", "nope")
NO_EXPERTS: dict[str, Any] = {"route": Route(1, 1), "expert_size": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class Granite4Config(GraniteMoeConfig):
    """`recurrent`: which layers keep a state. Without experts all layers are `dense`."""

    recurrent: tuple[bool, ...]
    mamba: Mamba2 | None  # where there are such layers
    turns: bool  # whether heads do


def record(config: Granite4Config, model: Recorder) -> KernelGraph:
    """Granite's decoder with these parts."""
    attend = scaled_attention(config, config.scales, model, model.rope() if config.turns else model.rope(()))

    def mix(layer: int, x: int) -> int:
        if config.mamba and config.recurrent[layer]:
            return mamba2.mix(config.mamba, model, x, hidden=config.hidden_size)
        return attend(layer, x)

    def inner(x: int) -> int:
        if config.dense:
            return model.gated_mlp(x, names="shared.", size=config.shared_size)
        return mlp(config, model, -1, x)

    return scaled_decoder(config.scales, model, mix, inner)


def _read_folder(fields: Fields) -> ModelConfig:
    shared = fields.count("shared_intermediate_size", 1024)
    stated = replace(fields, values={**fields.values, "intermediate_size": fields.count("intermediate_size", shared)})
    sizes = read_scaled(stated)
    turns = fields.text("position_embedding_type", "nope")
    if turns not in TURNS:
        raise fields.error(f"position_embedding_type {turns!r} is not supported (supported: {', '.join(TURNS)})")
    if (norm := fields.text("normalization_function", "rmsnorm")) != "rmsnorm":
        raise fields.error(f"normalization_function {norm!r} is not supported (supported: rmsnorm)")
    recurrent = _read_kinds(fields, sizes["num_layers"])
    mixture = {**NO_EXPERTS, "dense": tuple(range(sizes["num_layers"]))}
    if fields.count("num_local_experts", 8, minimum=0):
        route = read_route(fields, experts=("num_local_experts",), renormalise=True, top_k=2)
        mixture = {"route": route, "expert_size": sizes["intermediate_size"]}
    if not any(recurrent):  # what these say is of layers that there are none of
        fields.read.update(name for name in fields.values if name.startswith("mamba_") or name == "time_step_limit")
    fields.read.update(("num_experts_per_tok", "init_method"))
    mamba = mamba2.read_folder(fields) if any(recurrent) else None
    return Granite4Config(
        **sizes, **mixture, shared_size=shared, recurrent=recurrent, mamba=mamba, turns=turns == "rope"
    )


def _read_kinds(fields: Fields, layers: int) -> tuple[bool, ...]:
    """Which layers keep a state."""
    kinds = fields.items("layer_types")
    if len(kinds) != layers or not set(map(str, kinds)) <= {*ATTENDS, *RECURRENT}:
        raise fields.error(f"layer_types must name {', '.join((*ATTENDS, *RECURRENT))} for each of {layers} layers")
    return tuple(kind in RECURRENT for kind in kinds)


def _read_gguf(keys: GgufKeys) -> ModelConfig:
    fields, sizes = keys.fields, gguf_scaled(keys, mamba2.gguf_sizes(keys))
    layers = sizes["num_layers"]
    recurrent = mamba2.gguf_recurrent(keys, layers)
    shared = sizes["intermediate_size"]
    mixture = {**NO_EXPERTS, "dense": tuple(range(layers))}
    if fields.has("expert_count") and fields.count("expert_count", minimum=0):
        size = fields.count("expert_feed_forward_length", shared)
        mixture = {"route": read_gguf_route(keys, renormalise=True), "expert_size": size}
        shared = fields.count("expert_shared_feed_forward_length")
    return Granite4Config(
        **sizes,
        **mixture,
        shared_size=shared,
        recurrent=recurrent,
        mamba=mamba2.read_gguf(keys),
        turns=fields.flag("rope.scaling.finetuned", True),
    )


_GGUF_MLP = {f"ffn_{part}{end}": f"shared.{part}" for part in ("gate", "up", "down") for end in ("", "_shexp")}
GRANITE4 = replace(
    GRANITE_MOE,
    name="granite4",
    title="Granite 4",
    classes=("GraniteMoeHybridForCausalLM",),
    model_types=("granitemoehybrid",),
    gguf=("granitehybrid",),
    read_folder=_read_folder,
    read_gguf=_read_gguf,
    record=record,
    folder_names=names.folder(
        {**names.EXPERTS, **EXPERTS, **{f"mamba.{name}": each for name, each in mamba2.LAYER.items()}}
    ),
    gguf_names=names.gguf(
        {**names.GGUF_EXPERTS, **_GGUF_MLP, **mamba2.GGUF_LAYER}, interleaved=True, rates=mamba2.GGUF_RATES
    ),
    notes=f"{mamba2.NOTES}; GGUF files of models without such layers are Granite 3's",
)

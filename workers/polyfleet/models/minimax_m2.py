"""MiniMax M2: norms of all queries and keys of a row, part of each head turns, experts with corrected scores."""

from dataclasses import replace
from typing import Any

from polyfleet.graph.kernel_graph import KernelGraph
from polyfleet.graph.ops import Route
from polyfleet.models import names
from polyfleet.models.config import ModelConfig
from polyfleet.models.fields import Fields
from polyfleet.models.folder import check_activation, read_sizes
from polyfleet.models.gguf_keys import GgufKeys
from polyfleet.models.mixtral import LAYER, MIXTRAL
from polyfleet.models.mixture import MixtureConfig, mlp, read_gguf_route, read_route
from polyfleet.models.recorder import Recorder

STATED: dict[str, Any] = {  # what files say beside, and what all of these models are
    **{"use_qk_norm": True, "qk_norm_type": "per_layer", "use_routing_bias": True, "scoring_func": "sigmoid"},
    "shared_intermediate_size": 0,
}
DRAFTS = ("use_mtp", "num_mtp_modules", "mtp_transformer_layers")  # whose layers their files leave out
ATTENDS = 1  # of `attn_type_list`
HEAD_DIM = 128


def record(config: MixtureConfig, model: Recorder) -> KernelGraph:
    """The usual decoder with these parts."""
    rope, graph = model.rope(), model.graph

    def attend(_layer: int, x: int) -> int:
        return model.attention(x, rope, prepare=lambda each, name: graph.rope(model.norm(each, f"{name}_norm"), rope))

    return model.pre_norm_decoder(attend, lambda layer, x: mlp(config, model, layer, x))


def _read_folder(fields: Fields) -> ModelConfig:
    check_activation(fields)
    for key, value in STATED.items():
        if fields.has(key) and fields.values[key] != value:
            raise fields.error(f"{key} = {fields.values[key]!r} is not supported by this architecture: {value!r} is")
        fields.read.add(key)
    if fields.has("attn_type_list") and set(map(repr, fields.items("attn_type_list"))) != {repr(ATTENDS)}:
        raise fields.error(f"attn_type_list must be {ATTENDS} for each layer: all layers attend")
    fields.read.update(DRAFTS)
    sizes = read_sizes(_turning(fields), head_dim=HEAD_DIM, context_length=196608, partial=1.0, base=5e6)
    route = read_route(fields, experts=("num_local_experts",), renormalise=True, top_k=8)
    return _config(sizes, route)


def _turning(fields: Fields) -> Fields:
    """Older files state how many columns of a head turn, newer ones which part."""
    if not fields.has("rotary_dim"):
        return fields
    width = fields.count("rotary_dim") / fields.count("head_dim", HEAD_DIM)
    return replace(fields, values={"partial_rotary_factor": width, **fields.values})


def _read_gguf(keys: GgufKeys) -> ModelConfig:
    sizes, fields = keys.sizes(), keys.fields
    size = fields.count("expert_feed_forward_length", sizes["intermediate_size"])
    fields.count("expert_gating_func", 2, minimum=2, maximum=2)  # sigmoids
    return _config({**sizes, "intermediate_size": size}, read_gguf_route(keys, renormalise=True))


def _config(sizes: dict[str, Any], route: Route) -> MixtureConfig:
    return MixtureConfig(
        **sizes, route=replace(route, sigmoid=True), correction=True, expert_size=sizes["intermediate_size"]
    )


MINIMAX_M2 = replace(
    MIXTRAL,
    name="minimax-m2",
    title="MiniMax M2",
    classes=("MiniMaxM2ForCausalLM",),
    model_types=("minimax_m2",),
    gguf=("minimax-m2",),
    read_folder=_read_folder,
    read_gguf=_read_gguf,
    record=record,
    folder_names=names.folder(
        {
            **names.EXPERTS,
            **LAYER,
            "block_sparse_moe.e_score_correction_bias": "correction.bias",
            "mlp.e_score_correction_bias": "correction.bias",
        }
    ),
    gguf_names=names.gguf({**names.GGUF_EXPERTS, "exp_probs_b": "correction"}),
    notes="layers that draft are not loaded",
)

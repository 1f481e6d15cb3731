"""Trinity: gated attention with norms of heads between two norms, experts with corrected scores and shared ones; layers
with a window turn, and those that see all know no positions."""

from dataclasses import dataclass, replace
from typing import Any

from polyfleet.graph.kernel_graph import KernelGraph
from polyfleet.graph.ops import Route
from polyfleet.models import names
from polyfleet.models.config import ModelConfig
from polyfleet.models.deepseek import GGUF_SHARED, SHARED, SIGMOID
from polyfleet.models.fields import Fields
from polyfleet.models.folder import check_activation, read_sizes, read_sliding, read_window, spread
from polyfleet.models.gguf_keys import GgufKeys
from polyfleet.models.gguf_keys import read_sliding as gguf_sliding
from polyfleet.models.gguf_keys import read_window as gguf_window
from polyfleet.models.mixture import MAX_EXPERTS, MixtureConfig, check_route, mlp, read_gguf_route
from polyfleet.models.qwen3_moe import QWEN3_MOE
from polyfleet.models.recorder import Recorder

GROUPS = ("num_expert_groups", "num_limited_groups", "n_group", "topk_group")  # one of all
PERIOD = 4  # the last of so many layers sees all


@dataclass(frozen=True, slots=True, kw_only=True)
class TrinityConfig(MixtureConfig):
    """`turning`: in which layers heads turn."""

    turning: tuple[bool, ...]
    embedding_scale: float


def record(config: TrinityConfig, model: Recorder) -> KernelGraph:
    """Each branch between two norms."""
    graph, bias, ropes = model.graph, config.attention_bias, (model.rope(()), model.rope())
    x = model.embedding(config.embedding_scale)
    for layer in model.layers():
        normed, window = model.norm(x, "attention_norm"), config.window(layer)
        attended = model.attention(
            normed, ropes[config.turning[layer]], bias=bias, head_norms=True, gated=True, window=window
        )
        x = graph.add(model.norm(attended, "attention_post_norm"), x)
        inner = mlp(config, model, layer, model.norm(x, "mlp_norm"))
        x = graph.add(model.norm(inner, "mlp_post_norm"), x)
    return model.finish(x)


def _read_folder(fields: Fields) -> ModelConfig:
    check_activation(fields)
    if fields.flag("attention_bias", False):
        raise fields.error("attention_bias is not supported by this architecture: its gates have none")
    if fields.text("score_func", "sigmoid") != "sigmoid" or not fields.flag("route_norm", True):
        raise fields.error("score_func must be 'sigmoid', and route_norm true, in this architecture")
    if any(fields.count(key, 1) != 1 for key in GROUPS):
        raise fields.error(f"groups of experts ({GROUPS[0]}) are not supported by this architecture")
    fields.read.update(("load_balance_coeff", "use_grouped_mm"))  # how it was trained, and how others run it
    sizes = read_sizes(fields, head_dim=128, context_length=16384, norm_eps=1e-5)
    period = fields.count("global_attn_every_n_layers", PERIOD)
    local = read_sliding(fields, sizes["num_layers"], lambda layer: (layer + 1) % period != 0)
    experts, chosen = fields.count("num_experts", 64, maximum=MAX_EXPERTS), fields.count("num_experts_per_tok", 6)
    check_route(fields, experts, chosen)
    size = fields.count("moe_intermediate_size", 1408)
    return TrinityConfig(
        **sizes,
        **_local(sizes, read_window(fields, 1024), local),
        embedding_scale=sizes["hidden_size"] ** 0.5 if fields.flag("mup_enabled", False) else 1.0,
        route=Route(experts, chosen, sigmoid=True, scale=fields.positive("route_scale", 1.0)),
        correction=True,
        expert_size=size,
        shared_size=size * fields.count("num_shared_experts", 2, minimum=0),
        dense=tuple(range(min(fields.count("num_dense_layers", 1, minimum=0), sizes["num_layers"]))),
    )


def _read_gguf(keys: GgufKeys) -> ModelConfig:
    """Embeddings grow in all of them."""
    sizes, fields = keys.sizes(), keys.fields
    local = gguf_sliding(keys, sizes["num_layers"], lambda layer: (layer + 1) % PERIOD != 0)
    fields.count("expert_gating_func", SIGMOID, minimum=SIGMOID, maximum=SIGMOID)
    size = fields.count("expert_feed_forward_length")
    return TrinityConfig(
        **sizes,
        **_local(sizes, gguf_window(keys), local),
        embedding_scale=sizes["hidden_size"] ** 0.5,
        route=replace(read_gguf_route(keys, renormalise=True), sigmoid=True),
        correction=True,
        expert_size=size,
        shared_size=size * fields.count("expert_shared_count", 0, minimum=0),
        dense=tuple(range(fields.count("leading_dense_block_count", 0, minimum=0))),
    )


def _local(sizes: dict[str, Any], window: int, local: tuple[bool, ...]) -> dict[str, Any]:
    return {"windows": spread(window, local, sizes["context_length"]), "turning": local}


_LAYER = {
    "self_attn.gate_proj": "attention_gate",
    "post_attention_layernorm": "attention_post_norm",
    "pre_mlp_layernorm": "mlp_norm",
    "post_mlp_layernorm": "mlp_post_norm",
    "mlp.router.gate": "router",
    "mlp.expert_bias": "correction.bias",
}

TRINITY = replace(
    QWEN3_MOE,
    name="trinity",
    title="Trinity",
    classes=("AfmoeForCausalLM",),
    model_types=("afmoe",),
    gguf=("afmoe",),
    read_folder=_read_folder,
    read_gguf=_read_gguf,
    record=record,
    folder_names=names.folder({**names.EXPERTS, **SHARED, **_LAYER}),
    gguf_names=names.gguf(
        {**names.GGUF_EXPERTS, **GGUF_SHARED, **names.GGUF_POST_NORMS, "attn_gate": "attention_gate"}
    ),
)

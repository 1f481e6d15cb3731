"""Qwen 1.5 and 2 with experts, and one that all rows go through, weighed by a gate of its own."""

from dataclasses import replace

from polyfleet.graph.kernel_graph import KernelGraph
from polyfleet.models import names
from polyfleet.models.config import ModelConfig
from polyfleet.models.fields import Fields
from polyfleet.models.folder import check_activation, read_sizes, read_switched_windows
from polyfleet.models.gguf_keys import GgufKeys
from polyfleet.models.mixture import MixtureConfig, mlp, read_dense, read_gguf_route, read_route
from polyfleet.models.qwen2 import QWEN2
from polyfleet.models.recorder import Recorder


def record(config: MixtureConfig, model: Recorder) -> KernelGraph:
    """Qwen 2's layers with experts."""
    rope, bias = model.rope(), config.attention_bias
    return model.pre_norm_decoder(
        lambda layer, x: model.attention(x, rope, bias=bias, window=config.window(layer)),
        lambda layer, x: mlp(config, model, layer, x),
    )


def _read_folder(fields: Fields) -> ModelConfig:
    check_activation(fields)
    sizes, first = read_sizes(fields, context_length=32768), fields.count("max_window_layers", 28, minimum=0)
    renormalise = fields.flag("norm_topk_prob", False)
    return MixtureConfig(
        **sizes,
        attention_bias=fields.flag("qkv_bias", True),
        windows=read_switched_windows(fields, sizes, lambda layer: layer % 2 == 0 and layer < first),
        route=read_route(fields, experts=("num_experts", "num_local_experts"), renormalise=renormalise, top_k=4),
        expert_size=fields.count("moe_intermediate_size", 1408),
        shared_size=fields.count("shared_expert_intermediate_size", 5632),
        shared_gate=True,
        dense=read_dense(fields, sizes["num_layers"]),
    )


def _read_gguf(keys: GgufKeys) -> ModelConfig:
    sizes, size = keys.sizes(), keys.fields.count("expert_feed_forward_length")
    shared = keys.fields.count("expert_shared_feed_forward_length", sizes["intermediate_size"])
    route = read_gguf_route(keys, renormalise=False)
    return MixtureConfig(**sizes, route=route, expert_size=size, shared_size=shared, shared_gate=True)


SHARED = {
    "mlp.shared_expert_gate": "shared.router",
    "mlp.shared_expert.gate_proj": "shared.gate",
    "mlp.shared_expert.up_proj": "shared.up",
    "mlp.shared_expert.down_proj": "shared.down",
}
GGUF_SHARED = {
    "ffn_gate_inp_shexp": "shared.router",
    "ffn_gate_shexp": "shared.gate",
    "ffn_up_shexp": "shared.up",
    "ffn_down_shexp": "shared.down",
}

QWEN2_MOE = replace(
    QWEN2,
    name="qwen2moe",
    title="Qwen 1.5 and 2, mixtures of experts",
    classes=("Qwen2MoeForCausalLM",),
    model_types=("qwen2_moe",),
    gguf=("qwen2moe",),
    read_folder=_read_folder,
    read_gguf=_read_gguf,
    record=record,
    folder_names=names.folder({**names.EXPERTS, **SHARED}),
    gguf_names=names.gguf({**names.GGUF_EXPERTS, **GGUF_SHARED}),
    sparse=True,
    notes="",
)

"""Qwen 3 with experts."""

from dataclasses import replace

from polyfleet.graph.kernel_graph import KernelGraph
from polyfleet.models import names
from polyfleet.models.config import ModelConfig
from polyfleet.models.fields import Fields
from polyfleet.models.folder import check_activation, check_head_norms, read_sizes, read_switched_windows
from polyfleet.models.gguf_keys import GgufKeys
from polyfleet.models.mixture import MixtureConfig, mlp, read_dense, read_gguf_route, read_route
from polyfleet.models.qwen3 import QWEN3
from polyfleet.models.recorder import Recorder


def record(config: MixtureConfig, model: Recorder) -> KernelGraph:
    """Qwen 3's layers with experts."""
    rope, bias = model.rope(), config.attention_bias
    return model.pre_norm_decoder(
        lambda layer, x: model.attention(
            x, rope, bias=bias, output_bias=bias, head_norms=True, window=config.window(layer)
        ),
        lambda layer, x: mlp(config, model, layer, x),
    )


def _read_folder(fields: Fields) -> ModelConfig:
    check_activation(fields)
    check_head_norms(fields)
    sizes = read_sizes(fields, context_length=32768)
    renormalise = fields.flag("norm_topk_prob", False)
    return MixtureConfig(
        **sizes,
        attention_bias=fields.flag("attention_bias", False),
        windows=read_switched_windows(fields, sizes, lambda layer: True),
        route=read_route(fields, experts=("num_experts", "num_local_experts"), renormalise=renormalise, top_k=8),
        expert_size=fields.count("moe_intermediate_size", 768),
        dense=read_dense(fields, sizes["num_layers"]),
    )


def _read_gguf(keys: GgufKeys) -> ModelConfig:
    sizes, size = keys.sizes(), keys.fields.count("expert_feed_forward_length")
    return MixtureConfig(**sizes, route=read_gguf_route(keys, renormalise=True), expert_size=size)


QWEN3_MOE = replace(
    QWEN3,
    name="qwen3moe",
    title="Qwen 3, mixtures of experts",
    classes=("Qwen3MoeForCausalLM",),
    model_types=("qwen3_moe",),
    gguf=("qwen3moe",),
    read_folder=_read_folder,
    read_gguf=_read_gguf,
    record=record,
    folder_names=names.folder(names.EXPERTS),
    gguf_names=names.gguf(names.GGUF_EXPERTS),
    sparse=True,
)

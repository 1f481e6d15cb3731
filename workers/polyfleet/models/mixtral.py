"""Mixtral: Mistral with experts."""

from dataclasses import replace

from polyfleet.graph.kernel_graph import KernelGraph
from polyfleet.models import names
from polyfleet.models.config import ModelConfig
from polyfleet.models.fields import Fields
from polyfleet.models.folder import check_activation, read_sizes, read_windows
from polyfleet.models.gguf_keys import GgufKeys
from polyfleet.models.mistral import MISTRAL
from polyfleet.models.mixture import MixtureConfig, mlp, read_gguf_route, read_route
from polyfleet.models.recorder import Recorder


def record(config: MixtureConfig, model: Recorder) -> KernelGraph:
    """Mistral's layers with experts."""
    rope = model.rope()
    return model.pre_norm_decoder(
        lambda layer, x: model.attention(x, rope, window=config.window(layer)),
        lambda layer, x: mlp(config, model, layer, x),
    )


def _read_folder(fields: Fields) -> ModelConfig:
    check_activation(fields)
    sizes = read_sizes(fields, context_length=131072, norm_eps=1e-5, base=1e6)
    return MixtureConfig(
        **sizes,
        windows=read_windows(fields, sizes, lambda layer: True),
        route=read_route(fields, experts=("num_local_experts",), renormalise=True, top_k=2),
        expert_size=sizes["intermediate_size"],
    )


def _read_gguf(keys: GgufKeys) -> ModelConfig:
    sizes = keys.sizes()
    route = read_gguf_route(keys, renormalise=True)
    return MixtureConfig(**sizes, route=route, expert_size=sizes["intermediate_size"])


LAYER = {
    "block_sparse_moe.gate": "router",
    "block_sparse_moe.experts.{}.w1": "experts.gate[{}]",
    "block_sparse_moe.experts.{}.w3": "experts.up[{}]",
    "block_sparse_moe.experts.{}.w2": "experts.down[{}]",
}

MIXTRAL = replace(
    MISTRAL,
    name="mixtral",
    title="Mixtral",
    classes=("MixtralForCausalLM",),
    model_types=("mixtral",),
    gguf=("llama",),
    read_folder=_read_folder,
    read_gguf=_read_gguf,
    record=record,
    folder_names=names.folder({**names.EXPERTS, **LAYER}),
    gguf_names=names.gguf(names.GGUF_EXPERTS, interleaved=True),
    sparse=True,
    notes="GGUF files that state experts",
)

"""OLMoE: norms of all queries and keys of a row before they turn, and experts."""

from dataclasses import replace

from polyfleet.graph.kernel_graph import KernelGraph
from polyfleet.models import names
from polyfleet.models.config import ModelConfig
from polyfleet.models.fields import Fields
from polyfleet.models.folder import check_activation, read_sizes
from polyfleet.models.gguf_keys import GgufKeys
from polyfleet.models.llama import LLAMA
from polyfleet.models.mixture import MixtureConfig, mlp, read_gguf_route, read_route
from polyfleet.models.recorder import Recorder


def record(config: MixtureConfig, model: Recorder) -> KernelGraph:
    """Llama's layers with norms of queries and keys, and experts."""
    rope, bias = model.rope(), config.attention_bias

    def prepare(x: int, name: str) -> int:
        return model.graph.rope(model.norm(x, f"{name}_norm"), rope)

    return model.pre_norm_decoder(
        lambda layer, x: model.attention(x, rope, bias=bias, output_bias=bias, prepare=prepare),
        lambda layer, x: mlp(config, model, layer, x),
    )


def _read_folder(fields: Fields) -> ModelConfig:
    check_activation(fields)
    sizes, renormalise = read_sizes(fields, norm_eps=1e-5), fields.flag("norm_topk_prob", False)
    return MixtureConfig(
        **sizes,
        attention_bias=fields.flag("attention_bias", False),
        route=read_route(fields, experts=("num_experts", "num_local_experts"), renormalise=renormalise, top_k=8),
        expert_size=sizes["intermediate_size"],
    )


def _read_gguf(keys: GgufKeys) -> ModelConfig:
    sizes = keys.sizes()
    size = keys.fields.count("expert_feed_forward_length", sizes["intermediate_size"])
    return MixtureConfig(**sizes, route=read_gguf_route(keys, renormalise=False), expert_size=size)


OLMOE = replace(
    LLAMA,
    name="olmoe",
    title="OLMoE",
    classes=("OlmoeForCausalLM",),
    model_types=("olmoe",),
    gguf=("olmoe",),
    read_folder=_read_folder,
    read_gguf=_read_gguf,
    record=record,
    folder_names=names.folder(names.EXPERTS),
    gguf_names=names.gguf(names.GGUF_EXPERTS),
    sparse=True,
    notes="",
)

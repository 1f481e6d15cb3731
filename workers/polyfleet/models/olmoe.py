"""OLMoE and FlexOlmo: norms of all queries and keys of a row before they turn, and experts. Of FlexOlmo other norms
stand behind its branches."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

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
    return model.pre_norm_decoder(_attend(config, model), lambda layer, x: mlp(config, model, layer, x))


def _record_flex(config: MixtureConfig, model: Recorder) -> KernelGraph:
    return model.post_norm_decoder(_attend(config, model), lambda layer, x: mlp(config, model, layer, x))


def _attend(config: MixtureConfig, model: Recorder) -> Callable[[int, int], int]:
    rope, bias = model.rope(), config.attention_bias

    def prepare(x: int, name: str) -> int:
        return model.graph.rope(model.norm(x, f"{name}_norm"), rope)

    return lambda layer, x: model.attention(x, rope, bias=bias, output_bias=bias, prepare=prepare)


def _read_folder(fields: Fields) -> ModelConfig:
    return _read(fields, read_sizes(fields, norm_eps=1e-5), top_k=8)


def _read_flex(fields: Fields) -> ModelConfig:
    return _read(fields, read_sizes(fields, context_length=4096, base=500_000.0), top_k=5)


def _read(fields: Fields, sizes: dict[str, Any], *, top_k: int) -> ModelConfig:
    check_activation(fields)
    renormalise = fields.flag("norm_topk_prob", False)
    return MixtureConfig(
        **sizes,
        attention_bias=fields.flag("attention_bias", False),
        route=read_route(fields, experts=("num_experts", "num_local_experts"), renormalise=renormalise, top_k=top_k),
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
FLEX_OLMO = replace(
    OLMOE,
    name="flexolmo",
    title="FlexOlmo",
    classes=("FlexOlmoForCausalLM",),
    model_types=("flex_olmo",),
    gguf=(),
    read_folder=_read_flex,
    record=_record_flex,
    folder_names=names.folder({**names.EXPERTS, **names.POST_NORMS}),
)

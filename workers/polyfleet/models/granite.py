"""Granite 3: Llama with scales of the embedding, of attention's products, of each branch and of the logits; one MLP, or
experts and one that all rows go through. HyperCLOVA X has norms behind its branches besides."""

from dataclasses import dataclass, replace
from typing import Any

from polyfleet.graph.kernel_graph import KernelGraph
from polyfleet.models import names
from polyfleet.models.config import ModelConfig
from polyfleet.models.deepseek import GGUF_SHARED
from polyfleet.models.fields import Fields
from polyfleet.models.folder import check_activation, read_sizes
from polyfleet.models.gguf_keys import GgufKeys
from polyfleet.models.minicpm import MINICPM, MiniCpmConfig, Scales, scaled_attention, scaled_decoder
from polyfleet.models.mixture import MixtureConfig, mlp, read_gguf_route, read_route
from polyfleet.models.recorder import Recorder


@dataclass(frozen=True, slots=True, kw_only=True)
class GraniteMoeConfig(MixtureConfig):
    """A mixture with scales."""

    scales: Scales


@dataclass(frozen=True, slots=True, kw_only=True)
class HyperClovaConfig(MiniCpmConfig):
    """`post_norms`: whether norms stand behind the branches, too."""

    post_norms: bool


def _record_hyperclova(config: HyperClovaConfig, model: Recorder) -> KernelGraph:
    attend = scaled_attention(config, config.scales, model, model.rope())

    def behind(x: int, name: str) -> int:
        return model.norm(x, name) if config.post_norms else x

    return scaled_decoder(
        *(config.scales, model),
        lambda layer, x: behind(attend(layer, x), "attention_post_norm"),
        lambda x: behind(model.gated_mlp(x, bias=config.mlp_bias), "mlp_post_norm"),
    )


def _record_moe(config: GraniteMoeConfig, model: Recorder) -> KernelGraph:
    attend = scaled_attention(config, config.scales, model, model.rope())
    return scaled_decoder(config.scales, model, attend, lambda x: mlp(config, model, -1, x))


def read_scaled(fields: Fields) -> dict[str, Any]:
    """What all folders state alike."""
    check_activation(fields)
    scales = Scales(
        embedding=fields.positive("embedding_multiplier", 1.0),
        attention=fields.positive("attention_multiplier", 1.0),
        residual=fields.positive("residual_multiplier", 1.0),
        head=1 / fields.positive("logits_scaling", 1.0),
    )
    return {**read_sizes(fields), "attention_bias": fields.flag("attention_bias", False), "scales": scales}


def _read_folder(fields: Fields) -> ModelConfig:
    return MiniCpmConfig(**read_scaled(fields), mlp_bias=fields.flag("mlp_bias", False))


def _read_hyperclova(fields: Fields) -> ModelConfig:
    """Logits are multiplied, not divided; products of attention count as usual where nothing is said."""
    sizes, head = read_scaled(fields), fields.positive("logits_scaling", 1.0)
    attention = fields.positive("attention_multiplier", sizes["head_dim"] ** -0.5)
    sizes["scales"] = replace(sizes["scales"], attention=attention, head=head)
    norms = fields.flag("use_post_norm", True)
    return HyperClovaConfig(**sizes, mlp_bias=fields.flag("mlp_bias", False), post_norms=norms)


def _read_moe(fields: Fields) -> ModelConfig:
    sizes = read_scaled(fields)
    return GraniteMoeConfig(
        **sizes,
        route=read_route(fields, experts=("num_local_experts",), renormalise=True, top_k=2),
        expert_size=sizes["intermediate_size"],
        shared_size=fields.count("shared_intermediate_size", 0, minimum=0),
    )


def gguf_scaled(keys: GgufKeys, sizes: dict[str, Any]) -> dict[str, Any]:
    """`sizes` and the scales of a GGUF file."""
    fields = keys.fields
    scales = Scales(
        embedding=fields.positive("embedding_scale", 1.0),
        attention=fields.positive("attention.scale", sizes["head_dim"] ** -0.5),
        residual=fields.positive("residual_scale", 1.0),
        head=1 / fields.positive("logit_scale", 1.0),
    )
    return {**sizes, "scales": scales}


def _read_gguf(keys: GgufKeys) -> ModelConfig:
    return MiniCpmConfig(**gguf_scaled(keys, keys.sizes()))


def _read_gguf_moe(keys: GgufKeys) -> ModelConfig:
    sizes, shared = (
        gguf_scaled(keys, keys.sizes()),
        keys.fields.count("expert_shared_feed_forward_length", 0, minimum=0),
    )
    size = keys.fields.count("expert_feed_forward_length", sizes["intermediate_size"])
    route = read_gguf_route(keys, renormalise=True)
    return GraniteMoeConfig(**sizes, route=route, expert_size=size, shared_size=shared)


EXPERTS = {
    "block_sparse_moe.router": "router",
    "block_sparse_moe.router.layer": "router",
    "block_sparse_moe.experts.gate_up_proj": "experts.gate experts.up",
    "block_sparse_moe.experts.down_proj": "experts.down",
    "block_sparse_moe.input_linear": "experts.gate experts.up",
    "block_sparse_moe.output_linear": "experts.down",
    "shared_mlp.input_linear": "shared.gate shared.up",
    "shared_mlp.output_linear": "shared.down",
}
GRANITE = replace(
    MINICPM,
    name="granite",
    title="Granite 3",
    classes=("GraniteForCausalLM",),
    model_types=("granite",),
    gguf=("granite",),
    read_folder=_read_folder,
    read_gguf=_read_gguf,
    folder_names=names.folder(),
    notes="dense models",
)
HYPERCLOVA = replace(
    GRANITE,
    name="hyperclova",
    title="HyperCLOVA X",
    classes=("HyperCLOVAXForCausalLM",),
    model_types=("hyperclovax",),
    gguf=(),
    read_folder=_read_hyperclova,
    record=_record_hyperclova,
    folder_names=names.folder({"post_norm1": "attention_post_norm", "post_norm2": "mlp_post_norm"}),
    notes="",
)
GRANITE_MOE = replace(
    GRANITE,
    name="granitemoe",
    title="Granite 3, mixtures of experts",
    classes=("GraniteMoeForCausalLM", "GraniteMoeSharedForCausalLM"),
    model_types=("granitemoe", "granitemoeshared"),
    gguf=("granitemoe",),
    read_folder=_read_moe,
    read_gguf=_read_gguf_moe,
    record=_record_moe,
    folder_names=names.folder({**names.EXPERTS, **EXPERTS}),
    gguf_names=names.gguf({**names.GGUF_EXPERTS, **GGUF_SHARED}, interleaved=True),
    sparse=True,
    notes="",
)

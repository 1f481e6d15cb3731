"""Mellum 2: Qwen 3's mixture of experts with windows, whose layers turn by a rope of their own."""

from dataclasses import dataclass, replace

from polyfleet.graph.kernel_graph import KernelGraph
from polyfleet.models import names
from polyfleet.models.config import ModelConfig
from polyfleet.models.fields import Fields
from polyfleet.models.folder import FULL, SLIDING, check_activation, read_sizes, read_sliding, read_window, spread
from polyfleet.models.folder_rope import read_rope
from polyfleet.models.mixture import MixtureConfig, mlp, read_dense_kinds, read_route
from polyfleet.models.qwen3_moe import QWEN3_MOE
from polyfleet.models.recorder import Recorder

DRAFTS = ("num_nextn_predict_layers", "num_mtp_layers", "mtp_layer_types", "mtp_mlp_layer_types")


@dataclass(frozen=True, slots=True, kw_only=True)
class MellumConfig(MixtureConfig):
    """`local`: which layers turn by `local_frequencies`."""

    local: tuple[bool, ...]
    local_frequencies: tuple[float, ...]


def record(config: MellumConfig, model: Recorder) -> KernelGraph:
    """The usual decoder with these parts."""
    ropes, bias = (model.rope(), model.rope(config.local_frequencies)), config.attention_bias

    def attend(layer: int, x: int) -> int:
        rope, window = ropes[config.local[layer]], config.window(layer)
        return model.attention(x, rope, bias=bias, output_bias=bias, head_norms=True, window=window)

    return model.pre_norm_decoder(attend, lambda layer, x: mlp(config, model, layer, x))


def _read_folder(fields: Fields) -> ModelConfig:
    check_activation(fields)
    fields.read.update(DRAFTS)
    head_dim, sections = fields.count("head_dim", 128), fields.section("rope_parameters")
    rope, turning = (read_rope(fields, head_dim, section=sections.section(kind)) for kind in (FULL, SLIDING))
    if turning.amplitude != 1:
        raise fields.error("rope_parameters: local layers with an attention factor are not supported")
    sizes = read_sizes(fields, head_dim=128, context_length=131072, rope=rope)
    local = read_sliding(fields, sizes["num_layers"], lambda layer: False)
    renormalise = fields.flag("norm_topk_prob", True)
    return MellumConfig(
        **sizes,
        attention_bias=fields.flag("attention_bias", False),
        windows=spread(read_window(fields, 1024), local, sizes["context_length"]),
        local=local,
        local_frequencies=turning.frequencies,
        route=read_route(fields, experts=("num_local_experts", "num_experts"), renormalise=renormalise, top_k=8),
        expert_size=fields.count("moe_intermediate_size", 896),
        dense=read_dense_kinds(fields, sizes["num_layers"], ()),
    )


_FOLDER = names.folder(names.EXPERTS)
MELLUM = replace(
    QWEN3_MOE,
    name="mellum",
    title="Mellum 2",
    classes=("MellumForCausalLM",),
    model_types=("mellum",),
    gguf=(),
    read_folder=_read_folder,
    record=record,
    folder_names=replace(_FOLDER, ignored=(*_FOLDER.ignored, r"mtp\..*")),
    notes="layers that draft are not loaded",
)

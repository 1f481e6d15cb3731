"""K-EXAONE: EXAONE 4's attention behind norms, experts with corrected scores and shared ones."""

from dataclasses import dataclass, replace
from typing import Any

from polyfleet.graph.kernel_graph import KernelGraph
from polyfleet.models import names
from polyfleet.models.config import ModelConfig
from polyfleet.models.deepseek import (
    DEEPSEEK3,
    GGUF_SHARED,
    SHARED,
    read_gguf_grouped_route,
    read_grouped_route,
)
from polyfleet.models.exaone4 import attend, gguf_local, local_layers, read_local
from polyfleet.models.fields import Fields
from polyfleet.models.folder import check_activation, read_sizes
from polyfleet.models.gguf_keys import GgufKeys, take_drafts
from polyfleet.models.mixture import MixtureConfig, mlp, read_dense_kinds
from polyfleet.models.recorder import Recorder


@dataclass(frozen=True, slots=True, kw_only=True)
class ExaoneMoeConfig(MixtureConfig):
    """`turning`: in which layers heads turn."""

    turning: tuple[bool, ...]


def record(config: ExaoneMoeConfig, model: Recorder) -> KernelGraph:
    """The usual decoder with these parts."""
    return model.pre_norm_decoder(attend(config, config.turning, model), lambda layer, x: mlp(config, model, layer, x))


def _read_folder(fields: Fields) -> ModelConfig:
    check_activation(fields)
    if fields.text("scoring_func", "sigmoid") != "sigmoid":
        raise fields.error("scoring_func must be 'sigmoid' in this architecture")
    sizes = read_sizes(fields, norm_eps=1e-5)
    size, shared = fields.count("moe_intermediate_size", 1024), fields.count("num_shared_experts", 1, minimum=0)
    renormalise, method = fields.flag("norm_topk_prob", True), fields.text("topk_method", "noaux_tc")
    first = tuple(range(min(fields.count("first_k_dense_replace", 1, minimum=0), sizes["num_layers"])))
    return _config(
        sizes,
        local_layers(sizes, *read_local(fields, sizes["num_layers"])),
        route=read_grouped_route(fields, method, sigmoid=True, renormalise=renormalise, scale=2.5),
        expert_size=size,
        shared_size=shared * size,
        dense=read_dense_kinds(fields, sizes["num_layers"], first),
        draft_layers=fields.count("num_nextn_predict_layers", 0, minimum=0),
    )


def _read_gguf(keys: GgufKeys) -> ModelConfig:
    sizes, fields = keys.sizes(), keys.fields
    drafts = take_drafts(keys, sizes)
    size, shared = fields.count("expert_feed_forward_length"), fields.count("expert_shared_count", 1, minimum=0)
    return _config(
        sizes,
        local_layers(sizes, *gguf_local(keys, sizes["num_layers"])),
        route=read_gguf_grouped_route(fields, sigmoid=True, renormalise=True),
        expert_size=size,
        shared_size=shared * size,
        dense=tuple(range(min(fields.count("leading_dense_block_count", 1, minimum=0), sizes["num_layers"]))),
        draft_layers=drafts,
    )


def _config(sizes: dict[str, Any], local: dict[str, Any], **mixture: Any) -> ExaoneMoeConfig:
    return ExaoneMoeConfig(**sizes, **local, **mixture, correction=True)


_FOLDER = names.folder({**names.EXPERTS, **SHARED, "mlp.e_score_correction_bias": "correction.bias"})
EXAONE_MOE = replace(
    DEEPSEEK3,
    name="exaone_moe",
    title="K-EXAONE",
    classes=("ExaoneMoeForCausalLM", "ExaoneMoEForCausalLM"),
    model_types=("exaone_moe",),
    gguf=("exaone-moe",),
    read_folder=_read_folder,
    read_gguf=_read_gguf,
    record=record,
    folder_names=replace(_FOLDER, ignored=(*_FOLDER.ignored, r"mtp\..*")),
    gguf_names=names.gguf({**names.GGUF_EXPERTS, **GGUF_SHARED}),
    notes="layers that draft are not loaded",
)

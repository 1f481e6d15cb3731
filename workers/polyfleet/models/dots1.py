"""dots.llm1: Qwen 3's attention, experts with corrected scores and shared ones."""

from dataclasses import replace

from polyfleet.models import names
from polyfleet.models.config import ModelConfig
from polyfleet.models.deepseek import GGUF_SHARED, SHARED, read_gguf_grouped_route, read_grouped_route
from polyfleet.models.fields import Fields
from polyfleet.models.folder import check_activation, read_sizes, read_windows
from polyfleet.models.gguf_keys import GgufKeys
from polyfleet.models.mixture import MixtureConfig
from polyfleet.models.qwen3_moe import QWEN3_MOE

SCORES = ("noaux_tc", "sigmoid")  # two names for the same


def _read_folder(fields: Fields) -> ModelConfig:
    check_activation(fields)
    if fields.text("scoring_func", SCORES[0]) not in SCORES:
        raise fields.error(f"scoring_func must be {SCORES[0]!r} in this architecture")
    if fields.count("moe_layer_freq", 1) != 1:
        raise fields.error("moe_layer_freq over 1 is not supported by this architecture")
    sizes, first = read_sizes(fields), fields.count("max_window_layers", 62, minimum=0)
    size, shared = fields.count("moe_intermediate_size"), fields.count("n_shared_experts", 0, minimum=0)
    renormalise = fields.flag("norm_topk_prob", False)
    return MixtureConfig(
        **sizes,
        attention_bias=fields.flag("attention_bias", False),
        windows=read_windows(fields, sizes, lambda layer: layer >= first, default=4096),
        route=read_grouped_route(fields, "noaux_tc", sigmoid=True, renormalise=renormalise, scale=1.0),
        correction=True,
        expert_size=size,
        shared_size=shared * size,
        dense=tuple(range(min(fields.count("first_k_dense_replace", 0, minimum=0), sizes["num_layers"]))),
    )


def _read_gguf(keys: GgufKeys) -> ModelConfig:
    sizes, fields = keys.sizes(), keys.fields
    size, shared = fields.count("expert_feed_forward_length"), fields.count("expert_shared_count", 0, minimum=0)
    return MixtureConfig(
        **sizes,
        route=read_gguf_grouped_route(fields, sigmoid=True, renormalise=True),
        correction=True,
        expert_size=size,
        shared_size=shared * size,
        dense=tuple(range(min(fields.count("leading_dense_block_count", 0, minimum=0), sizes["num_layers"]))),
    )


DOTS1 = replace(
    QWEN3_MOE,
    name="dots1",
    title="dots.llm1",
    classes=("Dots1ForCausalLM",),
    model_types=("dots1",),
    gguf=("dots1",),
    read_folder=_read_folder,
    read_gguf=_read_gguf,
    folder_names=names.folder({**names.EXPERTS, **SHARED}),
    gguf_names=names.gguf({**names.GGUF_EXPERTS, **GGUF_SHARED}),
)

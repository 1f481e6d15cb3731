"""GLM 4.5 and 4.6, and Solar Open: Llama's attention, experts with corrected scores and shared ones, part of each head
of the former turns; GLM 4.7 Flash: DeepSeek V3 of other sizes."""

from dataclasses import dataclass, replace

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
from polyfleet.models.fields import Fields
from polyfleet.models.folder import check_activation, read_sizes
from polyfleet.models.gguf_keys import GgufKeys, take_drafts
from polyfleet.models.mixture import MixtureConfig, mlp, read_dense_kinds
from polyfleet.models.recorder import Recorder


@dataclass(frozen=True, slots=True, kw_only=True)
class GlmMoeConfig(MixtureConfig):
    """`head_norms`: whether heads are normalised before they turn."""

    head_norms: bool


def record(config: GlmMoeConfig, model: Recorder) -> KernelGraph:
    """The usual decoder with these parts."""
    rope, bias = model.rope(), config.attention_bias
    return model.pre_norm_decoder(
        lambda layer, x: model.attention(x, rope, bias=bias, head_norms=config.head_norms),
        lambda layer, x: mlp(config, model, layer, x),
    )


def _read_folder(fields: Fields, turning: float = 0.5) -> ModelConfig:
    check_activation(fields)
    sizes = read_sizes(fields, context_length=131072, norm_eps=1e-5, partial=turning)
    size, shared = fields.count("moe_intermediate_size", 1408), fields.count("n_shared_experts", 1, minimum=0)
    renormalise = fields.flag("norm_topk_prob", True)
    return GlmMoeConfig(
        **sizes,
        attention_bias=fields.flag("attention_bias", False),
        head_norms=fields.flag("use_qk_norm", False),
        route=read_grouped_route(fields, "noaux_tc", sigmoid=True, renormalise=renormalise, scale=1.0),
        correction=True,
        expert_size=size,
        shared_size=shared * size,
        dense=tuple(range(min(fields.count("first_k_dense_replace", 1, minimum=0), sizes["num_layers"]))),
        draft_layers=fields.count("num_nextn_predict_layers", 1, minimum=0),
    )


def _read_solar(fields: Fields) -> ModelConfig:
    """Experts in all layers, heads that turn whole."""
    usual = {"first_k_dense_replace": 0, "num_nextn_predict_layers": 0, "head_dim": 128}
    inner = {"intermediate_size": fields.count("moe_intermediate_size", 1280)}
    base = {} if fields.has("rope_parameters") or fields.has("rope_theta") else {"rope_theta": 1_000_000.0}
    return _read_folder(replace(fields, values={**usual, **inner, **base, **fields.values}), turning=1.0)


def _read_flash(fields: Fields) -> ModelConfig:
    """Newer files name the layers without experts one by one."""
    usual = {"first_k_dense_replace": 1, "routed_scaling_factor": 1.8}
    config = DEEPSEEK3.read_folder(replace(fields, values={**usual, **fields.values}))
    assert isinstance(config, MixtureConfig)
    return replace(config, dense=read_dense_kinds(fields, config.num_layers, config.dense))


def _read_gguf(keys: GgufKeys) -> ModelConfig:
    sizes, fields = keys.sizes(), keys.fields
    drafts = take_drafts(keys, sizes)
    size, shared = fields.count("expert_feed_forward_length"), fields.count("expert_shared_count", 1, minimum=0)
    return GlmMoeConfig(
        **sizes,
        head_norms=keys.has("blk.0.attn_q_norm.weight"),
        route=read_gguf_grouped_route(fields, sigmoid=True, renormalise=True),
        correction=True,
        expert_size=size,
        shared_size=shared * size,
        dense=tuple(range(min(fields.count("leading_dense_block_count", 1, minimum=0), sizes["num_layers"]))),
        draft_layers=drafts,
    )


GLM4_MOE = replace(
    DEEPSEEK3,
    name="glm4moe",
    title="GLM 4.5 and 4.6",
    classes=("Glm4MoeForCausalLM",),
    model_types=("glm4_moe",),
    gguf=("glm4moe",),
    read_folder=_read_folder,
    read_gguf=_read_gguf,
    record=record,
    folder_names=names.folder({**names.EXPERTS, **SHARED}),
    gguf_names=names.gguf({**names.GGUF_EXPERTS, **GGUF_SHARED, "post_attention_norm": "mlp_norm"}),
    notes="layers that draft are not loaded",
)
SOLAR = replace(
    GLM4_MOE,
    name="solar",
    title="Solar Open",
    classes=("SolarOpenForCausalLM",),
    model_types=("solar_open",),
    gguf=(),
    read_folder=_read_solar,
    notes="",
)
GLM4_FLASH = replace(
    DEEPSEEK3,
    name="glm4flash",
    title="GLM 4.7 Flash",
    classes=("Glm4MoeLiteForCausalLM",),
    model_types=("glm4_moe_lite",),
    gguf=(),
    read_folder=_read_flash,
    notes="its GGUF files are DeepSeek V3's; layers that draft are not loaded",
)

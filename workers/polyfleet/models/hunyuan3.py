"""Hunyuan 3: Qwen 3's attention, experts with corrected scores and shared ones."""

from dataclasses import replace

from polyfleet.graph.ops import Route
from polyfleet.models import names
from polyfleet.models.config import ModelConfig
from polyfleet.models.deepseek import SHARED
from polyfleet.models.fields import Fields
from polyfleet.models.folder import check_activation, read_sizes
from polyfleet.models.glm4_moe import GLM4_MOE, GlmMoeConfig
from polyfleet.models.mixture import MAX_EXPERTS, check_route, read_dense_kinds


def _read_folder(fields: Fields) -> ModelConfig:
    check_activation(fields)
    fields.read.add("enable_moe_fp32_combine")  # how sums are rounded
    sizes = read_sizes(fields, head_dim=128, context_length=131072, norm_eps=1e-5, base=11_158_840.0)
    experts, chosen = fields.count("num_experts", 192, maximum=MAX_EXPERTS), fields.count("num_experts_per_tok", 8)
    check_route(fields, experts, chosen)
    size, layers = fields.count("moe_intermediate_size", 1536), sizes["num_layers"]
    first = tuple(range(min(fields.count("first_k_dense_replace", 1, minimum=0), layers)))
    return GlmMoeConfig(
        **sizes,
        head_norms=True,
        route=Route(experts, chosen, sigmoid=True, scale=fields.positive("router_scaling_factor", 2.826)),
        correction=True,
        expert_size=size,
        shared_size=size * fields.count("num_shared_experts", 1, minimum=0),
        dense=read_dense_kinds(fields, layers, first),
        draft_layers=fields.count("num_nextn_predict_layers", 0, minimum=0),
    )


_LAYER = {
    **{"mlp.router.gate": "router", "mlp.expert_bias": "correction.bias"},
    "mlp.e_score_correction_bias": "correction.bias",
    **{f"mlp.shared_mlp.{part}_proj": f"shared.{part}" for part in ("gate", "up", "down")},
}
HUNYUAN3 = replace(
    GLM4_MOE,
    name="hunyuan3",
    title="Hunyuan 3",
    classes=("HYV3ForCausalLM",),
    model_types=("hy_v3",),
    gguf=(),
    read_folder=_read_folder,
    folder_names=names.folder({**names.EXPERTS, **SHARED, **_LAYER}),
    notes="layers that draft are not loaded",
)

"""ERNIE 4.5: Llama whose pairs that turn are neighbours in folders too; one MLP, or experts with corrected scores."""

from dataclasses import replace

from polyfleet.graph.kernel_graph import KernelGraph
from polyfleet.graph.ops import Route
from polyfleet.models import names
from polyfleet.models.config import ModelConfig
from polyfleet.models.deepseek import GGUF_SHARED, SHARED
from polyfleet.models.fields import Fields
from polyfleet.models.folder import check_activation, read_sizes
from polyfleet.models.gguf_keys import GgufKeys
from polyfleet.models.llama import LLAMA
from polyfleet.models.mixture import MAX_EXPERTS, MixtureConfig, check_route, mlp, read_gguf_route
from polyfleet.models.recorder import Recorder

LEAST = 1e-6  # `moe_norm_min` up to which shares sum up to 1 in all but rows whose scores are all as good as 0


def record_moe(config: MixtureConfig, model: Recorder) -> KernelGraph:
    """Llama's layers, with experts."""
    rope, bias = model.rope(), config.attention_bias
    return model.pre_norm_decoder(
        lambda layer, x: model.attention(x, rope, bias=bias, output_bias=bias),
        lambda layer, x: mlp(config, model, layer, x),
    )


def _read_folder(fields: Fields) -> ModelConfig:
    check_activation(fields)
    bias = fields.flag("use_bias", False)
    sizes = read_sizes(fields, head_dim=128, context_length=131072, norm_eps=1e-5, tied=True)
    return ModelConfig(**sizes, attention_bias=bias, mlp_bias=bias)


def _read_moe(fields: Fields) -> ModelConfig:
    check_activation(fields)
    if fields.flag("use_bias", False):
        raise fields.error("use_bias is not supported by this architecture: its experts have none")
    if not fields.flag("moe_use_aux_free", True):
        raise fields.error("moe_use_aux_free = false is not supported: scores of experts are corrected")
    if fields.positive("moe_norm_min", 1e-12) > LEAST:
        raise fields.error(f"moe_norm_min over {LEAST} is not supported: shares of experts sum up to 1")
    fields.read.update(("moe_gate", "moe_gate_act", "moe_capacity", "moe_multimodal_dispatch_use_allgather"))
    sizes = read_sizes(fields, context_length=131072, norm_eps=1e-5, tied=True, base=5e5)
    experts, chosen = fields.count("moe_num_experts", maximum=MAX_EXPERTS), fields.count("moe_k", 6)
    check_route(fields, experts, chosen)
    size = fields.count("moe_intermediate_size", 1536)
    first, every = fields.count("moe_layer_start_index", 1, minimum=0), fields.count("moe_layer_interval", 1)
    last = fields.values.get("moe_layer_end_index", -1)
    last = sizes["num_layers"] - 1 if last in (None, -1) else fields.count("moe_layer_end_index", minimum=0)
    fields.read.add("moe_layer_end_index")
    layers = range(sizes["num_layers"])
    return MixtureConfig(
        **sizes,
        route=Route(experts, chosen),
        correction=True,
        expert_size=size,
        shared_size=size * fields.count("moe_num_shared_experts", 2, minimum=0),
        dense=tuple(each for each in layers if (each + 1) % every or not first <= each <= last),
    )


def _read_gguf_moe(keys: GgufKeys) -> ModelConfig:
    sizes, fields = keys.sizes(), keys.fields
    size, every = fields.count("expert_feed_forward_length"), fields.count("interleave_moe_layer_step", 1)
    first = fields.count("leading_dense_block_count", 1, minimum=0)
    shared = fields.count("expert_shared_count", 0, minimum=0) * size
    return MixtureConfig(
        **sizes,
        route=read_gguf_route(keys, renormalise=True),
        correction=any(name.endswith("exp_probs_b.bias") for name in keys.tensors),
        expert_size=size,
        shared_size=fields.count("expert_shared_feed_forward_length", shared, minimum=0),
        dense=tuple(each for each in range(sizes["num_layers"]) if each < first or (each + 1) % every),
    )


ERNIE = replace(
    LLAMA,
    name="ernie4.5",
    title="ERNIE 4.5",
    classes=("Ernie4_5ForCausalLM", "Ernie4_5_ForCausalLM"),
    model_types=("ernie4_5",),
    gguf=("ernie4_5",),
    read_folder=_read_folder,
    folder_names=names.folder(interleaved=True),
    notes="dense models",
)
ERNIE_MOE = replace(
    ERNIE,
    name="ernie4.5moe",
    title="ERNIE 4.5, mixtures of experts",
    classes=("Ernie4_5_MoeForCausalLM",),
    model_types=("ernie4_5_moe",),
    gguf=("ernie4_5-moe",),
    read_folder=_read_moe,
    read_gguf=_read_gguf_moe,
    record=record_moe,
    folder_names=names.folder(
        {**names.EXPERTS, **SHARED, "mlp.moe_statics.e_score_correction_bias": "correction.bias"}, interleaved=True
    ),
    gguf_names=names.gguf({**names.GGUF_EXPERTS, **GGUF_SHARED}, interleaved=True),
    sparse=True,
    notes="",
)

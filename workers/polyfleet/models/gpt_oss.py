"""gpt-oss: experts with biases and a limit, sinks of attention, windows in every other layer."""

from dataclasses import replace

from polyfleet.graph.kernel_graph import KernelGraph
from polyfleet.graph.ops import Route
from polyfleet.models import names
from polyfleet.models.architecture import Architecture
from polyfleet.models.config import ModelConfig
from polyfleet.models.fields import Fields
from polyfleet.models.folder import check_activation, read_sizes, read_windows
from polyfleet.models.gguf_keys import GgufKeys
from polyfleet.models.gguf_keys import read_windows as gguf_windows
from polyfleet.models.mixture import MixtureConfig, read_gguf_route, read_route
from polyfleet.models.recorder import Recorder

LIMIT, STEEPNESS, WINDOW = 7.0, 1.702, 128  # of files that say nothing
BASE = 150000.0
ROPE = {"rope_type": "yarn", "factor": 32.0, "truncate": False, "original_max_position_embeddings": 4096}


def record(config: MixtureConfig, model: Recorder) -> KernelGraph:
    """The usual decoder with these parts."""
    rope, route = model.rope(), config.route

    def mlp(layer: int, x: int) -> int:
        shares = model.router(x, route, bias=True)
        return model.experts(x, shares, route.experts, config.expert_size, route.top_k, limit=LIMIT)

    return model.pre_norm_decoder(
        lambda layer, x: model.attention(x, rope, bias=True, output_bias=True, window=config.window(layer), sinks=True),
        mlp,
    )


def _is_local(layer: int) -> bool:
    return layer % 2 == 0


def _read_folder(fields: Fields) -> ModelConfig:
    check_activation(fields)
    if not (fields.has("rope_parameters") or fields.has("rope_scaling")):
        fields = replace(fields, values={**fields.values, "rope_parameters": ROPE})
    sizes = read_sizes(fields, head_dim=64, context_length=131072, norm_eps=1e-5, base=BASE)
    for key, value in (("swiglu_limit", LIMIT), ("swiglu_alpha", STEEPNESS)):
        if fields.positive(key, value) != value:
            raise fields.error(f"{key} = {fields.positive(key)} is not supported (supported: {value})")
    if not fields.flag("attention_bias", True):
        raise fields.error("attention_bias = false is not supported by this architecture")
    route = read_route(fields, experts=("num_local_experts", "num_experts"), renormalise=True, top_k=4)
    fields.count("experts_per_token", route.top_k)  # which older files state too
    windows = read_windows(fields, sizes, _is_local, default=WINDOW)
    return MixtureConfig(
        **sizes, attention_bias=True, windows=windows, route=route, expert_size=sizes["intermediate_size"]
    )


def _read_gguf(keys: GgufKeys) -> ModelConfig:
    fields = keys.fields
    sizes = keys.sizes() | {"attention_bias": True, "mlp_bias": False}
    route: Route = read_gguf_route(keys, renormalise=True)
    if fields.count("expert_gating_func", 3, minimum=0) != 3:
        raise fields.error("expert_gating_func must be 3 in this architecture: the softmax of the chosen")
    size = fields.count("expert_feed_forward_length", sizes["intermediate_size"])
    return MixtureConfig(**sizes, windows=gguf_windows(keys, sizes, _is_local), route=route, expert_size=size)


_LAYER = {
    "self_attn.sinks": "sinks",
    "mlp.router": "router",
    "mlp.experts.gate_up_proj_bias": "experts.gate.bias experts.up.bias",
    "mlp.experts.down_proj_bias": "experts.down.bias",
}
_GGUF_LAYER = {"attn_sinks": "sinks", "post_attention_norm": "mlp_norm"}

GPT_OSS = Architecture(
    name="gpt-oss",
    title="gpt-oss",
    classes=("GptOssForCausalLM",),
    model_types=("gpt_oss",),
    gguf=("gpt-oss",),
    read_folder=_read_folder,
    read_gguf=_read_gguf,
    record=record,
    folder_names=names.folder({**names.EXPERTS, **_LAYER}, turned_stacks=True),
    gguf_names=names.gguf({**names.GGUF_EXPERTS, **_GGUF_LAYER}),
    sparse=True,
)

"""Hunyuan: Llama with norms of heads of queries and keys behind their rotation; one MLP, or experts beside it."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from polyfleet.graph.kernel_graph import KernelGraph
from polyfleet.graph.ops import Route
from polyfleet.models import names
from polyfleet.models.config import ModelConfig
from polyfleet.models.deepseek import GGUF_SHARED
from polyfleet.models.fields import Fields
from polyfleet.models.folder import MAX_HEAD_DIM, check_activation, check_head_norms, read_sizes
from polyfleet.models.folder_rope import DEFAULT_BASE, StatedRope, read_rope, rope_section
from polyfleet.models.gguf_keys import GgufKeys
from polyfleet.models.llama import LLAMA
from polyfleet.models.mixture import MixtureConfig, check_route, mlp, read_gguf_route
from polyfleet.models.recorder import Recorder
from polyfleet.models.rope import inverse_frequencies

# What published files state of other tasks and of what they have one of.
DESCRIBING = {"norm_type", "pool_type", "dense_list", "mask_init_id", "org_vocab_size", "cla_share_factor"}
DESCRIBING |= {f"{part}_{end}_id" for part in ("text", "im", "video") for end in ("start", "end", "newline")}
DESCRIBING |= {"use_rotary_pos_emb", "attention_head_dim", "num_media_embeds", "pad_id"}
ONE_OF = {"num_experts", "moe_topk"}


def record(config: ModelConfig, model: Recorder, inner: Callable[[int, int], int] | None = None) -> KernelGraph:
    """Llama's layers with norms of heads, and their MLP or another one."""
    rope, bias = model.rope(), config.attention_bias

    def prepare(x: int, name: str) -> int:
        return model.norm(model.graph.rope(x, rope), f"{name}_norm", config.head_dim)

    return model.pre_norm_decoder(
        lambda layer, x: model.attention(x, rope, bias=bias, output_bias=bias, prepare=prepare), inner
    )


def record_moe(config: MixtureConfig, model: Recorder) -> KernelGraph:
    """The same with experts."""
    return record(config, model, lambda layer, x: mlp(config, model, layer, x))


def _read_folder(fields: Fields) -> ModelConfig:
    fields.read.update(ONE_OF)
    return ModelConfig(**_read(fields))


def _read_moe(fields: Fields) -> ModelConfig:
    sizes, hidden = _read(fields), fields.count("intermediate_size")
    experts, chosen = _same(fields, "num_experts"), _same(fields, "moe_topk", 1)
    check_route(fields, experts, chosen)
    if fields.count("moe_layer_num_skipped", 0, minimum=0):
        raise fields.error("moe_layer_num_skipped must be 0: layers without experts are not supported")
    if not fields.flag("use_mixed_mlp_moe", True) or not fields.flag("norm_topk_prob", True):
        raise fields.error("use_mixed_mlp_moe and norm_topk_prob must be true in this architecture")
    fields.read.update(("moe_drop_tokens", "moe_random_routing_dropped_token", "capacity_factor"))  # of its training
    size = _same(fields, "moe_intermediate_size", hidden)
    return MixtureConfig(
        **sizes,
        route=Route(experts, chosen),
        expert_size=size,
        shared_size=size * _same(fields, "num_shared_expert", 1),
    )


def _same(fields: Fields, key: str, default: int | None = None) -> int:
    """A number of all layers, stated once or for each of them. Raises ModelFileError where layers differ."""
    if not isinstance(fields.values.get(key), list):
        return fields.count(key, default)
    values = fields.items(key)
    if len(values) < fields.count("num_hidden_layers") or any(each != values[0] for each in values):
        raise fields.error(f"{key} must be the same in all layers")
    return Fields(fields.path, {key: values[0]}).count(key)


def _read(fields: Fields) -> dict[str, Any]:
    """What both state alike."""
    check_activation(fields)
    check_head_norms(fields)
    fields.read.update(DESCRIBING)
    hidden, heads = fields.count("hidden_size"), fields.count("num_attention_heads")
    head_dim = fields.count("head_dim", max(1, hidden // heads), maximum=MAX_HEAD_DIM)
    sizes = read_sizes(fields, norm_eps=1e-5, rope=_read_rope(fields, head_dim))
    return {**sizes, "attention_bias": fields.flag("attention_bias", False)}


def _read_gguf_moe(keys: GgufKeys) -> ModelConfig:
    sizes, fields = keys.sizes(), keys.fields
    size = fields.count("expert_feed_forward_length", sizes["intermediate_size"])
    shared = fields.count("expert_shared_feed_forward_length", size)
    route = read_gguf_route(keys, renormalise=True)
    return MixtureConfig(**sizes, route=route, expert_size=size, shared_size=shared)


def _read_rope(fields: Fields, head_dim: int) -> StatedRope:
    """`dynamic` with an `alpha` is a larger base, whatever the length."""
    section = rope_section(fields)
    kind = section.text("rope_type", section.text("type", "default"))
    if kind != "dynamic" or not section.has("alpha") or head_dim < 4:
        return read_rope(fields, head_dim)
    base = (section if section.has("rope_theta") else fields).positive("rope_theta", DEFAULT_BASE)
    stretched = base * section.positive("alpha") ** (head_dim / (head_dim - 2))
    return StatedRope(inverse_frequencies(head_dim, stretched))


_NORMS = {"self_attn.query_layernorm": "q_norm", "self_attn.key_layernorm": "k_norm"}
_SHARED = {
    "mlp.gate.wg": "router",
    "mlp.shared_mlp.gate_proj": "shared.gate",
    "mlp.shared_mlp.up_proj": "shared.up",
    "mlp.shared_mlp.down_proj": "shared.down",
}
HUNYUAN = replace(
    LLAMA,
    name="hunyuan",
    title="Hunyuan",
    classes=("HunYuanDenseV1ForCausalLM",),
    model_types=("hunyuan_v1_dense",),
    gguf=("hunyuan-dense",),
    read_folder=_read_folder,
    record=record,
    folder_names=names.folder(_NORMS),
    gguf_names=names.gguf(),
    notes="dense models",
)
HUNYUAN_MOE = replace(
    HUNYUAN,
    name="hunyuanmoe",
    title="Hunyuan, mixtures of experts",
    classes=("HunYuanMoEV1ForCausalLM",),
    model_types=("hunyuan_v1_moe",),
    gguf=("hunyuan-moe",),
    read_folder=_read_moe,
    read_gguf=_read_gguf_moe,
    record=record_moe,
    folder_names=names.folder({**names.EXPERTS, **_NORMS, **_SHARED}),
    gguf_names=names.gguf({**names.GGUF_EXPERTS, **GGUF_SHARED}),
    sparse=True,
    notes="as many experts in each layer",
)

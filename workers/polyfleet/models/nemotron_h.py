"""Nemotron-H, Nemotron Nano 2 and Nemotron 3: each layer is Mamba 2's, attention without positions, an MLP without a
gate, or experts without gates and one that all rows go through."""

from dataclasses import dataclass, replace
from typing import Any

from polyfleet.graph.kernel_graph import KernelGraph
from polyfleet.graph.ops import Route
from polyfleet.models import mamba2, names
from polyfleet.models.config import ModelConfig
from polyfleet.models.deepseek import GGUF_SHARED, SHARED, read_gguf_grouped_route, read_grouped_route
from polyfleet.models.fields import Fields
from polyfleet.models.folder import FULL, check_activation, read_sizes
from polyfleet.models.gguf_keys import GgufKeys
from polyfleet.models.llama import LLAMA
from polyfleet.models.mamba2 import MAX_TAPS, Mamba2
from polyfleet.models.mixture import MixtureConfig
from polyfleet.models.recorder import Recorder
from polyfleet.models.starcoder2 import squared

STATE, ATTENTION, MLP, EXPERTS = "M", "*", "-", "E"  # of `hybrid_override_pattern`
KINDS = {
    **{"linear_attention": STATE, "mamba": STATE, FULL: ATTENTION, "attention": ATTENTION, "mlp": MLP, "moe": EXPERTS}
}
OLDER = {"mamba_n_groups": "n_groups", "mamba_d_conv": "conv_kernel", "mamba_conv_bias": "use_conv_bias"}
# What files state of layers that only draft, of how experts are computed, and beside layers that there are none of.
IDLE = (
    *("n_shared_experts", "moe_shared_expert_overlap", "mtp_layers_block_type", "mtp_hybrid_override_pattern"),
    *("num_nextn_predict_layers", "attention_head_dim", "norm_eps"),
)
OF_EXPERTS = (
    *("n_routed_experts", "moe_intermediate_size", "moe_shared_expert_intermediate_size", "moe_latent_size"),
    *("num_experts_per_tok", "routed_scaling_factor", "n_group", "topk_group", "norm_topk_prob"),
)
NO_EXPERTS: dict[str, Any] = {"route": Route(1, 1), "expert_size": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class NemotronHConfig(MixtureConfig):
    """`kinds`: a letter for each layer. `latent_size`: columns that experts see; 0: those of the hidden state."""

    kinds: str
    mamba: Mamba2
    latent_size: int = 0


def record(config: NemotronHConfig, model: Recorder) -> KernelGraph:
    """What a layer comes to is added to what entered its norm."""
    graph, still, x = model.graph, model.rope(()), model.embedding()
    for layer in model.layers():
        normed, kind = model.norm(x, "attention_norm"), config.kinds[layer]
        if kind == STATE:
            made = mamba2.mix(config.mamba, model, normed, hidden=config.hidden_size)
        elif kind == ATTENTION:
            made = model.attention(normed, still)
        elif kind == EXPERTS:
            made = _mixture(config, model, normed)
        else:
            made = model.plain_mlp(normed, squared(model), bias=config.mlp_bias)
        x = graph.add(made, x)
    return model.finish(x)


def _mixture(config: NemotronHConfig, model: Recorder, x: int) -> int:
    """Experts, which may see a row through a matrix and add to it through another, and the one of all rows."""
    route, latent, bias = config.route, config.latent_size, config.mlp_bias
    shares = model.router(x, route, correction=True)
    seen = model.linear(x, "latent_down", latent, bias=bias) if latent else x
    made = model.experts(seen, shares, route.experts, config.expert_size, route.top_k, gated=False)
    made = model.linear(made, "latent_up", config.hidden_size, bias=bias) if latent else made
    shared = model.plain_mlp(x, squared(model), bias=bias, names="shared.", size=config.shared_size)
    return model.graph.add(made, shared)


def _read_folder(fields: Fields) -> ModelConfig:
    check_activation(fields, ("relu2",), "mlp_hidden_act")
    check_activation(fields, ("silu",), "mamba_hidden_act")
    kinds = _read_kinds(fields)
    fields.read.update(IDLE)
    older = {new: fields.values[old] for old, new in OLDER.items() if fields.has(old)}
    fields.read.update(OLDER)
    stated = replace(fields, values={**fields.values, **older, "num_hidden_layers": len(kinds)})
    if fields.count("num_hidden_layers", len(kinds)) != len(kinds):
        raise fields.error(f"num_hidden_layers must be {len(kinds)}, the number of kinds of layers")
    if fields.has("num_query_groups") and fields.count("num_query_groups") != fields.count("num_key_value_heads"):
        raise fields.error("num_query_groups must be num_key_value_heads")
    width = fields.count("attention_head_dim", 128)
    eps = "layer_norm_epsilon" if fields.has("layer_norm_epsilon") else "rms_norm_eps"
    return NemotronHConfig(
        **read_sizes(stated, head_dim=width, context_length=4096, norm_eps=1e-5, eps=eps),
        **_read_mixture(fields, kinds),
        mlp_bias=fields.flag("mlp_bias", False),
        kinds=kinds,
        mamba=_read_mamba(stated),
    )


def _read_kinds(fields: Fields) -> str:
    """The letters of layers, or what their names mean."""
    kinds = fields.text("hybrid_override_pattern", "")
    if not kinds:
        named = "layer_types" if fields.has("layer_types") else "layers_block_type"
        kinds = "".join(KINDS.get(str(each), "?") for each in fields.items(named))
    if set(kinds) - {STATE, ATTENTION, MLP, EXPERTS}:
        raise fields.error("a kind of layer is none of these: Mamba 2's, attention, MLP, experts")
    return kinds


def _read_mixture(fields: Fields, kinds: str) -> dict[str, Any]:
    if EXPERTS not in kinds:
        fields.read.update(OF_EXPERTS)
        return NO_EXPERTS
    renormalise = fields.flag("norm_topk_prob", True)
    return {
        "route": read_grouped_route(fields, "noaux_tc", sigmoid=True, renormalise=renormalise, scale=1.0),
        "expert_size": fields.count("moe_intermediate_size"),
        "shared_size": fields.count("moe_shared_expert_intermediate_size"),
        "latent_size": fields.count("moe_latent_size", 0, minimum=0),
    }


def _read_mamba(fields: Fields) -> Mamba2:
    mamba2.check_steps(fields)
    mamba = Mamba2(
        heads=fields.count("mamba_num_heads", 128),
        width=fields.count("mamba_head_dim", 64),
        groups=fields.count("n_groups", 8),
        state_width=fields.count("ssm_state_size", 128),
        taps=fields.count("conv_kernel", 4, minimum=2, maximum=MAX_TAPS),
        conv_bias=fields.flag("use_conv_bias", True),
        bias=fields.flag("use_bias", False),
    )
    mamba2.check(fields, mamba, mamba.heads * mamba.width)
    fields.read.update(("mamba_ssm_cache_dtype", "mamba_proj_bias"))
    return mamba


def _read_gguf(keys: GgufKeys) -> ModelConfig:
    sizes: dict[str, Any] = mamba2.gguf_sizes(keys)
    recurrent = mamba2.gguf_recurrent(keys, sizes["num_layers"])
    attends = [keys.has(f"blk.{layer}.attn_q.weight") for layer in range(len(recurrent))]
    routed = [keys.has(f"blk.{layer}.ffn_gate_inp.weight") for layer in range(len(recurrent))]
    kinds = "".join(
        STATE if state else ATTENTION if sees else EXPERTS if chooses else MLP
        for state, sees, chooses in zip(recurrent, attends, routed, strict=True)
    )
    biased = any(name.endswith(("ffn_up.bias", "ffn_up_shexp.bias")) for name in keys.tensors)
    return NemotronHConfig(
        **{**sizes, "attention_bias": False, "mlp_bias": biased},
        **(_read_gguf_mixture(keys.fields) if EXPERTS in kinds else NO_EXPERTS),
        kinds=kinds,
        mamba=mamba2.read_gguf(keys),
    )


def _read_gguf_mixture(fields: Fields) -> dict[str, Any]:
    fields.count("expert_shared_count", 1)  # all together of the size that is stated
    return {
        "route": read_gguf_grouped_route(fields, sigmoid=True, renormalise=True),
        "expert_size": fields.count("expert_feed_forward_length"),
        "shared_size": fields.count("expert_shared_feed_forward_length"),
        "latent_size": fields.count("moe_latent_size", 0, minimum=0),
    }


_LAYER = {
    **{"norm": "attention_norm", "mixer.up_proj": "up", "mixer.down_proj": "down"},
    **{f"mixer.{each}_proj": each for each in "qkvo"},
    **{f"mixer.{name}": each for name, each in mamba2.LAYER.items()},
    **{name.replace("mlp.", "mixer."): each for name, each in {**names.EXPERTS, **SHARED}.items()},
    **{"mixer.fc1_latent_proj": "latent_down", "mixer.fc2_latent_proj": "latent_up"},
}
_GGUF_LAYER = {
    **{**names.GGUF_EXPERTS, **GGUF_SHARED, **mamba2.GGUF_LAYER},
    **{"ffn_latent_down": "latent_down", "ffn_latent_up": "latent_up"},
}
NEMOTRON_H = replace(
    LLAMA,
    name="nemotron_h",
    title="Nemotron-H, Nemotron Nano 2 and Nemotron 3",
    classes=("NemotronHForCausalLM",),
    model_types=("nemotron_h",),
    gguf=("nemotron_h", "nemotron_h_moe"),
    read_folder=_read_folder,
    read_gguf=_read_gguf,
    record=record,
    folder_names=replace(
        names.folder(_LAYER),
        names={"model.embeddings": "embedding", "model.norm_f": "norm", "lm_head": "lm_head"},
        outer={"backbone.": "model."},
        ignored=(*names.IMPLIED_BY_CONFIG, r"mtp\..*"),
    ),
    gguf_names=names.gguf(_GGUF_LAYER, rates=mamba2.GGUF_RATES),
    notes=f"{mamba2.NOTES}; layers that draft are not loaded",
)

"""Nemotron-H and Nemotron Nano 2: each layer is Mamba 2's, attention without positions, or an MLP without a gate."""

from dataclasses import dataclass, replace
from typing import Any

from polyfleet.graph.kernel_graph import KernelGraph
from polyfleet.models import mamba2, names
from polyfleet.models.config import ModelConfig
from polyfleet.models.fields import Fields
from polyfleet.models.folder import FULL, check_activation, read_sizes
from polyfleet.models.gguf_keys import GgufKeys
from polyfleet.models.llama import LLAMA
from polyfleet.models.mamba2 import MAX_TAPS, Mamba2
from polyfleet.models.recorder import Recorder
from polyfleet.models.starcoder2 import squared

STATE, ATTENTION, MLP = "M", "*", "-"  # of `hybrid_override_pattern`
KINDS = {"linear_attention": STATE, "mamba": STATE, FULL: ATTENTION, "attention": ATTENTION, "mlp": MLP}
OLDER = {"mamba_n_groups": "n_groups", "mamba_d_conv": "conv_kernel", "mamba_conv_bias": "use_conv_bias"}
# Of experts and drafts, which files state beside layers that there are none of.
IDLE = (
    *("n_routed_experts", "n_shared_experts", "moe_intermediate_size", "moe_shared_expert_intermediate_size"),
    *("moe_latent_size", "moe_shared_expert_overlap", "num_experts_per_tok", "routed_scaling_factor", "n_group"),
    *("topk_group", "norm_topk_prob", "mtp_layers_block_type", "mtp_hybrid_override_pattern", "attention_head_dim"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NemotronHConfig(ModelConfig):
    """`kinds`: a letter for each layer."""

    kinds: str
    mamba: Mamba2


def record(config: NemotronHConfig, model: Recorder) -> KernelGraph:
    """What a layer comes to is added to what entered its norm."""
    graph, still, x = model.graph, model.rope(()), model.embedding()
    for layer in model.layers():
        normed, kind = model.norm(x, "attention_norm"), config.kinds[layer]
        if kind == STATE:
            made = mamba2.mix(config.mamba, model, normed, hidden=config.hidden_size)
        elif kind == ATTENTION:
            made = model.attention(normed, still)
        else:
            made = model.plain_mlp(normed, squared(model), bias=config.mlp_bias)
        x = graph.add(made, x)
    return model.finish(x)


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
        mlp_bias=fields.flag("mlp_bias", False),
        kinds=kinds,
        mamba=_read_mamba(stated),
    )


def _read_kinds(fields: Fields) -> str:
    """The letters of layers, or what their names mean."""
    kinds = fields.text("hybrid_override_pattern", "")
    if not kinds:
        named = "layer_types" if fields.has("layer_types") else "layers_block_type"
        kinds = "".join(KINDS.get(str(each), "E") for each in fields.items(named))
    if set(kinds) - {STATE, ATTENTION, MLP}:
        raise fields.error("layers of experts, which have no gates here, are not supported by this architecture")
    return kinds


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
    letters = (STATE if state else ATTENTION if sees else MLP for state, sees in zip(recurrent, attends, strict=True))
    biased = any(name.endswith("ffn_up.bias") for name in keys.tensors)
    return NemotronHConfig(
        **{**sizes, "attention_bias": False, "mlp_bias": biased}, kinds="".join(letters), mamba=mamba2.read_gguf(keys)
    )


_LAYER = {
    **{"norm": "attention_norm", "mixer.up_proj": "up", "mixer.down_proj": "down"},
    **{f"mixer.{each}_proj": each for each in "qkvo"},
    **{f"mixer.{name}": each for name, each in mamba2.LAYER.items()},
}
NEMOTRON_H = replace(
    LLAMA,
    name="nemotron_h",
    title="Nemotron-H and Nemotron Nano 2",
    classes=("NemotronHForCausalLM",),
    model_types=("nemotron_h",),
    gguf=("nemotron_h",),
    read_folder=_read_folder,
    read_gguf=_read_gguf,
    record=record,
    folder_names=replace(
        names.folder(_LAYER),
        names={"model.embeddings": "embedding", "model.norm_f": "norm", "lm_head": "lm_head"},
        outer={"backbone.": "model."},
    ),
    gguf_names=names.gguf(mamba2.GGUF_LAYER, rates=mamba2.GGUF_RATES),
    notes=f"dense models; {mamba2.NOTES}",
)

"""Mamba 2's layers (Dao and Gu, arXiv 2405.21060), as hybrids have them: a convolution over the last rows, the
recurrence, and a norm of what a gate lets through."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from polyfleet.graph.ops import StateSpace
from polyfleet.models.fields import Fields
from polyfleet.models.gguf_keys import GgufKeys
from polyfleet.models.recorder import Recorder

NOTES = "a sequence keeps a state, so no prefix is read twice"
MAX_TAPS = 64
STARTED = (  # how weights were made, and how other software computes
    *("mamba_chunk_size", "chunk_size", "mamba_expand", "expand", "time_step_min", "time_step_max", "time_step_rank"),
    *("time_step_floor", "mamba_dt_min", "mamba_dt_max", "mamba_dt_init_floor", "use_mamba_kernels", "rescale_prenorm"),
    *("rescale_prenorm_residual", "residual_in_fp32", "num_logits_to_keep"),
)
LAYER: Mapping[str, str] = {  # names of tensors, within the layer's part
    "in_proj": "ssm_gate ssm_xbc ssm_step",
    "conv1d": "ssm_conv",
    "A_log": "ssm_decay",
    "dt_bias": "ssm_shift",
    "D": "ssm_skip",
    "norm": "ssm_gain",
    "out_proj": "ssm_out",
}
GGUF_LAYER: Mapping[str, str] = {
    "ssm_in": "ssm_gate ssm_xbc ssm_step",
    "ssm_conv1d": "ssm_conv",
    "ssm_a": "ssm_decay",
    "ssm_dt.bias": "ssm_shift",
    "ssm_d": "ssm_skip",
    "ssm_norm": "ssm_gain",
    "ssm_out": "ssm_out",
}
GGUF_RATES = ("ssm_decay",)


@dataclass(frozen=True, slots=True)
class Mamba2:
    """One layer's facts. `heads` of `width` columns each, whose states have `state_width` rows, share `groups`."""

    heads: int
    width: int
    groups: int
    state_width: int
    taps: int  # of the convolution
    conv_bias: bool = True
    bias: bool = False  # of what enters and leaves
    normed: bool = True  # whether what the gate lets through is normalised, each group by itself


def mix(mamba: Mamba2, model: Recorder, x: int, *, hidden: int, gate: float = 1.0, step: float = 1.0) -> int:
    """A layer's part in the place of attention, or beside it; `gate` and `step` are scales."""
    graph, inner, bias = model.graph, mamba.heads * mamba.width, mamba.bias
    gates = graph.scale(model.linear(x, "ssm_gate", inner, bias=bias), gate)
    xbc = model.linear(x, "ssm_xbc", inner + 2 * mamba.groups * mamba.state_width, bias=bias)
    steps = graph.scale(model.linear(x, "ssm_step", mamba.heads, bias=bias), step)
    mixed = graph.silu(model.causal_conv(xbc, "ssm_conv", mamba.taps, bias=mamba.conv_bias))
    space = StateSpace(0, mamba.groups, mamba.heads, mamba.state_width, mamba.width)
    kept = model.ssm_scan(mixed, steps, ("ssm_decay", "ssm_shift", "ssm_skip"), space)
    gated = graph.mul(graph.silu(gates), kept)
    if mamba.normed:
        gated = model.group_norm(gated, "ssm_gain", mamba.groups)
    return model.linear(gated, "ssm_out", hidden, bias=bias)


def read_folder(fields: Fields, *, groups: int = 1, state_width: int = 256) -> Mamba2:
    """As most configurations state it, under names that begin with `mamba_`; raises ModelFileError."""
    check_steps(fields)
    stated = fields.under("mamba_")
    heads = stated.count("n_heads", 128)
    inner = stated.count("d_ssm", stated.count("expand", 2) * fields.count("hidden_size"))
    auto = fields.values.get("mamba_d_head") == "auto"
    width = max(1, inner // heads) if auto else stated.count("d_head", max(1, inner // heads))
    fields.read.add("mamba_d_head")
    mamba = Mamba2(
        heads=heads,
        width=width,
        groups=stated.count("n_groups", groups),
        state_width=stated.count("d_state", state_width),
        taps=stated.count("d_conv", 4, minimum=2, maximum=MAX_TAPS),
        conv_bias=stated.flag("conv_bias", True),
        bias=stated.flag("proj_bias", False),
    )
    check(fields, mamba, inner)
    return mamba


def check_steps(fields: Fields) -> None:
    """Raise ModelFileError for steps within bounds of their own, which single rows are not held to elsewhere."""
    fields.read.update(STARTED)
    if fields.has("time_step_limit"):
        low, high = (*fields.items("time_step_limit"), None, None)[:2]
        if low not in (0, 0.0) or (isinstance(high, (int, float)) and high != float("inf")):
            raise fields.error(f"time_step_limit = [{low}, {high}] is not supported: steps have no bounds but 0")


def check(fields: Fields, mamba: Mamba2, inner: int) -> None:
    """Raise ModelFileError for heads that don't fit."""
    if mamba.heads * mamba.width != inner:
        raise fields.error(f"{mamba.heads} mamba heads of {mamba.width} columns are not the {inner} that there are")
    if mamba.heads % mamba.groups:
        raise fields.error(f"{mamba.heads} mamba heads can't share {mamba.groups} groups evenly")


def read_gguf(keys: GgufKeys, *, normed: bool = True) -> Mamba2:
    """Of a GGUF file; what its layers have is told by their tensors."""
    fields = keys.fields
    heads, inner = fields.count("ssm.time_step_rank"), fields.count("ssm.inner_size")
    mamba = Mamba2(
        heads=heads,
        width=max(1, inner // heads),
        groups=fields.count("ssm.group_count", 1),
        state_width=fields.count("ssm.state_size"),
        taps=fields.count("ssm.conv_kernel", minimum=2, maximum=MAX_TAPS),
        conv_bias=any(name.endswith("ssm_conv1d.bias") for name in keys.tensors),
        bias=any(name.endswith("ssm_in.bias") for name in keys.tensors),
        normed=normed,
    )
    check(fields, mamba, inner)
    return mamba


def gguf_sizes(keys: GgufKeys) -> dict[str, Any]:
    """All of ModelConfig. What is stated layer by layer, 0 where a layer has none, is the most of all layers."""
    fields = keys.fields
    values = dict(fields.values)
    for key in ("attention.head_count", "attention.head_count_kv", "feed_forward_length"):
        stated = fields.values.get(fields.prefix + key)
        if isinstance(stated, list):
            fields.read.add(fields.prefix + key)
            values[fields.prefix + key] = max((each for each in stated if isinstance(each, int)), default=0) or None
    return replace(keys, fields=replace(fields, values=values)).sizes()


def gguf_recurrent(keys: GgufKeys, layers: int) -> tuple[bool, ...]:
    """Layers that keep a state are those that have its weights."""
    return tuple(keys.has(f"blk.{layer}.ssm_out.weight") for layer in range(layers))

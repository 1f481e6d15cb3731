"""Falcon-H1: attention and Mamba 2's recurrence side by side in each layer, with scales of nearly everything."""

from dataclasses import dataclass, replace

from polyfleet.graph.kernel_graph import KernelGraph
from polyfleet.models import mamba2, names
from polyfleet.models.config import ModelConfig
from polyfleet.models.fields import Fields
from polyfleet.models.folder import check_activation, read_sizes
from polyfleet.models.llama import LLAMA
from polyfleet.models.mamba2 import Mamba2
from polyfleet.models.recorder import Recorder


@dataclass(frozen=True, slots=True, kw_only=True)
class FalconScales:
    """What is multiplied by what: what enters a part, and what leaves it."""

    embedding: float
    head: float
    keys: float
    attention: tuple[float, float]
    mamba: tuple[float, float]
    mlp: tuple[float, float]  # of the gate, and of what leaves
    gate: float  # of the recurrence, and its other parts
    x: float
    b: float
    c: float
    step: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FalconH1Config(ModelConfig):
    """One with scales."""

    mamba: Mamba2
    scales: FalconScales

    @property
    def factors(self) -> tuple[tuple[int, float], ...]:
        """Of how many columns of the convolution what it multiplies by counts how often: it has no scale of its own."""
        groups, scales = self.mamba.groups * self.mamba.state_width, self.scales
        return (self.mamba.heads * self.mamba.width, scales.x), (groups, scales.b), (groups, scales.c)


def record(config: FalconH1Config, model: Recorder) -> KernelGraph:
    """Both are added to what entered their norm."""
    graph, scales, rope, bias = model.graph, config.scales, model.rope(), config.attention_bias
    x = model.embedding(scales.embedding)
    for _ in model.layers():
        normed = model.norm(x, "attention_norm")
        attended = model.attention(
            graph.scale(normed, scales.attention[0]),
            rope,
            bias=bias,
            output_bias=bias,
            scale=scales.keys * config.head_dim**-0.5,
        )
        entering = graph.scale(normed, scales.mamba[0])
        kept = mamba2.mix(config.mamba, model, entering, hidden=config.hidden_size, gate=scales.gate, step=scales.step)
        both = graph.add(graph.scale(kept, scales.mamba[1]), graph.scale(attended, scales.attention[1]))
        x = graph.add(both, x)
        x = graph.add(_mlp(config, model, model.norm(x, "mlp_norm")), x)
    return model.finish(x, scale=scales.head)


def _mlp(config: FalconH1Config, model: Recorder, x: int) -> int:
    graph, inner, bias = model.graph, config.intermediate_size, config.mlp_bias
    entering, leaving = config.scales.mlp
    gate = graph.silu(graph.scale(model.linear(x, "gate", inner, bias=bias), entering))
    down = model.linear(graph.mul(gate, model.linear(x, "up", inner, bias=bias)), "down", config.hidden_size, bias=bias)
    return graph.scale(down, leaving)


def _read_folder(fields: Fields) -> ModelConfig:
    check_activation(fields)
    mamba = mamba2.read_folder(fields)
    if fields.flag("projectors_bias", mamba.bias) != mamba.bias:
        raise fields.error("projectors_bias must be mamba_proj_bias")
    normed = fields.flag("mamba_rms_norm", False)
    if normed and fields.flag("mamba_norm_before_gate", True):
        raise fields.error("mamba_norm_before_gate = true is not supported: norms stand behind gates")
    fields.read.update(("mamba_norm_before_gate", "mamba_use_mlp", "mlp_expansion_factor"))
    return FalconH1Config(
        **read_sizes(fields, context_length=8192, norm_eps=1e-5),
        attention_bias=fields.flag("attention_bias", False),
        mlp_bias=fields.flag("mlp_bias", False),
        mamba=replace(mamba, normed=normed),
        scales=_read_scales(fields),
    )


def _read_scales(fields: Fields) -> FalconScales:
    gate, x, b, c, step = _several(fields, "ssm_multipliers", 5)
    entering, leaving = _several(fields, "mlp_multipliers", 2)
    one = {
        key: fields.positive(f"{key}_multiplier", 1.0)
        for key in (*("embedding", "lm_head", "key", "attention_in", "attention_out", "ssm_in", "ssm_out"),)
    }
    return FalconScales(
        embedding=one["embedding"],
        head=one["lm_head"],
        keys=one["key"],
        attention=(one["attention_in"], one["attention_out"]),
        mamba=(one["ssm_in"], one["ssm_out"]),
        mlp=(entering, leaving),
        gate=gate,
        x=x,
        b=b,
        c=c,
        step=step,
    )


def _several(fields: Fields, key: str, count: int) -> list[float]:
    """So many factors; all 1 where the file says nothing."""
    if not fields.has(key):
        return [1.0] * count
    found = fields.items(key)
    if len(found) != count or not all(isinstance(each, (int, float)) and 0 < each < 1e6 for each in found):
        raise fields.error(f"{key} must be {count} numbers over 0")
    return [float(each) for each in found]


_LAYER = {
    **{"pre_ff_layernorm": "mlp_norm"},
    **{f"feed_forward.{each}_proj": each for each in ("gate", "up", "down")},
    **{f"mamba.{name}": each for name, each in mamba2.LAYER.items()},
}
FALCON_H1 = replace(
    LLAMA,
    name="falcon_h1",
    title="Falcon-H1",
    classes=("FalconH1ForCausalLM",),
    model_types=("falcon_h1",),
    gguf=(),
    read_folder=_read_folder,
    record=record,
    folder_names=replace(names.folder(_LAYER), names={**names.FOLDER, "model.final_layernorm": "norm"}),
    notes=f"{mamba2.NOTES}; no GGUF files, whose weights hold its scales",
)

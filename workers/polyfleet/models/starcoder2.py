"""StarCoder 2, Nemotron, Jais 2 and StableLM: layer norms with biases; MLPs of all but the last have no gate."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from polyfleet.graph.kernel_graph import KernelGraph
from polyfleet.graph.ops import OpKind
from polyfleet.models import names
from polyfleet.models.config import ModelConfig
from polyfleet.models.fields import Fields
from polyfleet.models.folder import check_activation, read_sizes, read_windows
from polyfleet.models.gguf_keys import GgufKeys
from polyfleet.models.gguf_keys import read_windows as gguf_windows
from polyfleet.models.llama import LLAMA
from polyfleet.models.recorder import Recorder

GELU_TANH = ("gelu_pytorch_tanh", "gelu_new", "gelu_fast")


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerNormConfig(ModelConfig):
    """`output_bias`: of attention."""

    output_bias: bool


def _attend(config: LayerNormConfig, model: Recorder) -> Callable[[int, int], int]:
    rope = model.rope()
    return lambda layer, x: model.attention(
        x, rope, bias=config.attention_bias, output_bias=config.output_bias, window=config.window(layer)
    )


def record(config: LayerNormConfig, model: Recorder) -> KernelGraph:
    """StarCoder's layers."""

    def mlp(_layer: int, x: int) -> int:
        return model.plain_mlp(x, lambda inner: model.graph.unary(OpKind.GELU_TANH, inner), bias=config.mlp_bias)

    return model.pre_norm_decoder(_attend(config, model), mlp)


def squared(model: Recorder) -> Callable[[int], int]:
    """An activation: the square of what is over 0."""

    def activate(inner: int) -> int:
        kept = model.graph.unary(OpKind.RELU, inner)
        return model.graph.mul(kept, kept)

    return activate


def _record_nemotron(config: LayerNormConfig, model: Recorder) -> KernelGraph:
    return model.pre_norm_decoder(
        _attend(config, model), lambda layer, x: model.plain_mlp(x, squared(model), bias=config.mlp_bias)
    )


def _record_stablelm(config: LayerNormConfig, model: Recorder) -> KernelGraph:
    return model.pre_norm_decoder(_attend(config, model))


def _read_starcoder(fields: Fields) -> ModelConfig:
    check_activation(fields, GELU_TANH)
    sizes = read_sizes(fields, context_length=4096, norm_eps=1e-5, tied=True, eps="norm_epsilon")
    bias = fields.flag("use_bias", True)
    return LayerNormConfig(
        **sizes,
        attention_bias=bias,
        output_bias=bias,
        mlp_bias=bias,
        windows=read_windows(fields, sizes, lambda layer: True),
        layer_norms=True,
    )


def _read_nemotron(fields: Fields) -> ModelConfig:
    check_activation(fields, ("relu2",))
    sizes = read_sizes(fields, context_length=4096, norm_eps=1e-5, partial=0.5, eps="norm_eps")
    bias, mlp_bias = (fields.flag(key, False) for key in ("attention_bias", "mlp_bias"))
    return LayerNormConfig(**sizes, attention_bias=bias, output_bias=bias, mlp_bias=mlp_bias, layer_norms=True)


def _read_jais(fields: Fields) -> ModelConfig:
    check_activation(fields, ("relu2",))
    sizes = read_sizes(fields, context_length=8192, norm_eps=1e-5, eps="layer_norm_eps")
    bias, mlp_bias = (fields.flag(key, True) for key in ("attention_bias", "mlp_bias"))
    return LayerNormConfig(**sizes, attention_bias=bias, output_bias=bias, mlp_bias=mlp_bias, layer_norms=True)


def _read_stablelm(fields: Fields) -> ModelConfig:
    """Models whose branches are side by side, or whose heads have norms, are refused."""
    check_activation(fields)
    sizes = read_sizes(fields, context_length=4096, norm_eps=1e-5, partial=0.25, eps="layer_norm_eps")
    bias = fields.flag("use_qkv_bias", False)
    return LayerNormConfig(**sizes, attention_bias=bias, output_bias=False, layer_norms=True)


def _read_gguf(keys: GgufKeys) -> ModelConfig:
    sizes = keys.sizes()
    keys.fields.flag("use_parallel_residual", False)  # what a model is the tensors tell: one norm in a layer, or two
    return LayerNormConfig(
        **{**sizes, "mlp_bias": keys.has("blk.0.ffn_up.bias")},
        output_bias=keys.has("blk.0.attn_output.bias"),
        windows=gguf_windows(keys, sizes, lambda layer: True),
        layer_norms=True,
    )


STARCODER2 = replace(
    LLAMA,
    name="starcoder2",
    title="StarCoder 2",
    classes=("Starcoder2ForCausalLM",),
    model_types=("starcoder2",),
    gguf=("starcoder2",),
    read_folder=_read_starcoder,
    read_gguf=_read_gguf,
    record=record,
    folder_names=names.folder({"mlp.c_fc": "up", "mlp.c_proj": "down"}),
    gguf_names=names.gguf(),
    notes="",
)
NEMOTRON = replace(
    STARCODER2,
    name="nemotron",
    title="Nemotron 3 and 4",
    classes=("NemotronForCausalLM",),
    model_types=("nemotron",),
    gguf=("nemotron",),
    read_folder=_read_nemotron,
    record=_record_nemotron,
    folder_names=names.folder(norm_offset=1.0),
    notes="Minitron too; newer ones are Nemotron-H",
)
JAIS2 = replace(
    NEMOTRON,
    name="jais2",
    title="Jais 2",
    classes=("Jais2ForCausalLM",),
    model_types=("jais2",),
    gguf=("jais2",),
    read_folder=_read_jais,
    folder_names=names.folder(),
    notes="",
)
STABLELM = replace(
    STARCODER2,
    name="stablelm",
    title="StableLM 2",
    classes=("StableLmForCausalLM",),
    model_types=("stablelm",),
    gguf=("stablelm",),
    read_folder=_read_stablelm,
    record=_record_stablelm,
    folder_names=names.folder(),
    notes="1.6B and others with two norms in a layer",
)

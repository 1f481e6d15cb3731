"""Gemma: Llama with GELU, an embedding that grows with the root of the hidden size, and norms that leave 1 out."""

from dataclasses import replace

from polyfleet.graph.kernel_graph import KernelGraph
from polyfleet.graph.ops import OpKind
from polyfleet.models import names
from polyfleet.models.config import ModelConfig
from polyfleet.models.fields import Fields
from polyfleet.models.folder import check_activation, read_sizes
from polyfleet.models.gemma import GELU
from polyfleet.models.gguf_keys import GgufKeys
from polyfleet.models.llama import LLAMA
from polyfleet.models.recorder import Recorder


def record(config: ModelConfig, model: Recorder) -> KernelGraph:
    """Llama's layers."""
    rope, bias = model.rope(), config.attention_bias
    return model.pre_norm_decoder(
        lambda layer, x: model.attention(x, rope, bias=bias, output_bias=bias),
        lambda layer, x: model.gated_mlp(x, OpKind.GELU_TANH),
        scale=config.hidden_size**0.5,
    )


def _read_folder(fields: Fields) -> ModelConfig:
    """Older files say `gelu` and mean its approximation."""
    activation = "hidden_activation" if fields.has("hidden_activation") else "hidden_act"
    check_activation(fields, (*GELU, "gelu"), activation)
    fields.text("hidden_act", "")
    sizes = read_sizes(fields, head_dim=256, context_length=8192, tied=True)
    return ModelConfig(**sizes, attention_bias=fields.flag("attention_bias", False), wide_norms=True)


def _read_gguf(keys: GgufKeys) -> ModelConfig:
    return ModelConfig(**keys.sizes(), wide_norms=True)


GEMMA = replace(
    LLAMA,
    name="gemma",
    title="Gemma",
    classes=("GemmaForCausalLM",),
    model_types=("gemma",),
    gguf=("gemma",),
    read_folder=_read_folder,
    read_gguf=_read_gguf,
    record=record,
    folder_names=names.folder(norm_offset=1.0),
    gguf_names=names.gguf(),
    notes="",
)

"""Arcee's foundation model: Llama with an MLP that has no gate and squares what is over 0."""

from dataclasses import replace

from polyfleet.graph.kernel_graph import KernelGraph
from polyfleet.models.config import ModelConfig
from polyfleet.models.fields import Fields
from polyfleet.models.folder import check_activation, read_sizes
from polyfleet.models.gguf_keys import GgufKeys
from polyfleet.models.llama import LLAMA
from polyfleet.models.recorder import Recorder
from polyfleet.models.starcoder2 import squared


def record(config: ModelConfig, model: Recorder) -> KernelGraph:
    """Llama's attention, Nemotron's MLP."""
    rope, bias = model.rope(), config.attention_bias
    return model.pre_norm_decoder(
        lambda layer, x: model.attention(x, rope, bias=bias, output_bias=bias),
        lambda layer, x: model.plain_mlp(x, squared(model), bias=config.mlp_bias),
    )


def _read_folder(fields: Fields) -> ModelConfig:
    check_activation(fields, ("relu2",))
    biases = fields.flag("attention_bias", False), fields.flag("mlp_bias", False)
    sizes = read_sizes(fields, context_length=4096, norm_eps=1e-5)
    return ModelConfig(**sizes, attention_bias=biases[0], mlp_bias=biases[1])


def _read_gguf(keys: GgufKeys) -> ModelConfig:
    return ModelConfig(**{**keys.sizes(), "mlp_bias": keys.has("blk.0.ffn_up.bias")})


ARCEE = replace(
    LLAMA,
    name="arcee",
    title="Arcee",
    classes=("ArceeForCausalLM",),
    model_types=("arcee",),
    gguf=("arcee",),
    read_folder=_read_folder,
    read_gguf=_read_gguf,
    record=record,
    notes="AFM 4.5B",
)

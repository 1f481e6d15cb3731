"""Qwen 2 and 2.5: Llama with biases of queries, keys and values, and windows in the upper layers where switched on."""

from polyfleet.graph.kernel_graph import KernelGraph
from polyfleet.models import names
from polyfleet.models.architecture import Architecture
from polyfleet.models.config import ModelConfig
from polyfleet.models.fields import Fields
from polyfleet.models.folder import check_activation, read_sizes, read_upper_windows
from polyfleet.models.gguf_keys import GgufKeys
from polyfleet.models.recorder import Recorder


def record(config: ModelConfig, model: Recorder) -> KernelGraph:
    """Llama's layers with biases."""
    rope = model.rope()
    return model.pre_norm_decoder(lambda layer, x: model.attention(x, rope, bias=True, window=config.window(layer)))


def _read_folder(fields: Fields) -> ModelConfig:
    check_activation(fields)
    fields.flag("attention_bias", True)  # which some files state; their tensors have biases whatever it says
    sizes = read_sizes(fields, context_length=32768)
    return ModelConfig(**sizes, attention_bias=True, windows=read_upper_windows(fields, sizes))


def _read_gguf(keys: GgufKeys) -> ModelConfig:
    return ModelConfig(**keys.sizes())


QWEN2 = Architecture(
    name="qwen2",
    title="Qwen 2 and 2.5",
    classes=("Qwen2ForCausalLM",),
    model_types=("qwen2",),
    gguf=("qwen2",),
    read_folder=_read_folder,
    read_gguf=_read_gguf,
    record=record,
    folder_names=names.folder(),
    gguf_names=names.gguf(),
    notes="and what DeepSeek and others distilled into them",
)

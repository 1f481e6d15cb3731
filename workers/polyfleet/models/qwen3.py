"""Qwen 3, dense: norms of each head of queries and keys before they turn."""

from polyfleet.graph.kernel_graph import KernelGraph
from polyfleet.models import names
from polyfleet.models.architecture import Architecture
from polyfleet.models.config import ModelConfig
from polyfleet.models.fields import Fields
from polyfleet.models.folder import check_activation, check_head_norms, read_sizes, read_upper_windows
from polyfleet.models.gguf_keys import GgufKeys
from polyfleet.models.recorder import Recorder


def record(config: ModelConfig, model: Recorder) -> KernelGraph:
    """Llama's layers with norms of heads."""
    rope, bias = model.rope(), config.attention_bias
    return model.pre_norm_decoder(
        lambda layer, x: model.attention(
            x, rope, bias=bias, output_bias=bias, head_norms=True, window=config.window(layer)
        )
    )


def _read_folder(fields: Fields) -> ModelConfig:
    check_activation(fields)
    check_head_norms(fields)
    sizes = read_sizes(fields, head_dim=128, context_length=32768)
    bias = fields.flag("attention_bias", False)
    return ModelConfig(**sizes, attention_bias=bias, windows=read_upper_windows(fields, sizes))


def _read_gguf(keys: GgufKeys) -> ModelConfig:
    return ModelConfig(**keys.sizes())


QWEN3 = Architecture(
    name="qwen3",
    title="Qwen 3",
    classes=("Qwen3ForCausalLM", "Qwen3Model"),
    model_types=("qwen3",),
    gguf=("qwen3",),
    read_folder=_read_folder,
    read_gguf=_read_gguf,
    record=record,
    folder_names=names.folder(),
    gguf_names=names.gguf(),
)

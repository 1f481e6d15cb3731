"""Mistral, Ministral and Code World Model: Llama with windows."""

from dataclasses import replace

from polyfleet.graph.kernel_graph import KernelGraph
from polyfleet.models import names
from polyfleet.models.architecture import Architecture
from polyfleet.models.config import ModelConfig
from polyfleet.models.fields import Fields
from polyfleet.models.folder import check_activation, read_sizes, read_windows
from polyfleet.models.gguf_keys import GgufKeys
from polyfleet.models.gguf_keys import read_windows as gguf_windows
from polyfleet.models.recorder import Recorder

DEFAULT_WINDOW = 4096  # of files that say nothing


def record(config: ModelConfig, model: Recorder) -> KernelGraph:
    """Llama's layers, each with its window."""
    rope = model.rope()
    return model.pre_norm_decoder(lambda layer, x: model.attention(x, rope, window=config.window(layer)))


def _read_folder(fields: Fields) -> ModelConfig:
    check_activation(fields)
    sizes = read_sizes(fields)
    return ModelConfig(**sizes, windows=read_windows(fields, sizes, lambda layer: True, default=DEFAULT_WINDOW))


def _read_gguf(keys: GgufKeys) -> ModelConfig:
    sizes = keys.sizes()
    return ModelConfig(**sizes, windows=gguf_windows(keys, sizes, lambda layer: True))


def _read_cwm(fields: Fields) -> ModelConfig:
    """The first of four layers sees all."""
    check_activation(fields)
    sizes = read_sizes(fields, head_dim=128, context_length=131072, norm_eps=1e-5, base=1_000_000.0)
    return ModelConfig(**sizes, windows=read_windows(fields, sizes, lambda layer: layer % 4 != 0, default=8192))


MISTRAL = Architecture(
    name="mistral",
    title="Mistral",
    classes=("MistralForCausalLM", "MinistralForCausalLM", "Ministral3ForCausalLM", "MistralModel"),
    model_types=("mistral", "ministral", "ministral3"),
    gguf=("mistral3",),
    read_folder=_read_folder,
    read_gguf=_read_gguf,
    record=record,
    folder_names=names.folder(),
    gguf_names=names.gguf(interleaved=True),
    notes="with windows; GGUF files of Mistral 7B are Llama's; Ministral 3 up to its original context",
)
CWM = replace(
    MISTRAL,
    name="cwm",
    title="Code World Model",
    classes=("CwmForCausalLM",),
    model_types=("cwm",),
    gguf=(),
    read_folder=_read_cwm,
    notes="",
)

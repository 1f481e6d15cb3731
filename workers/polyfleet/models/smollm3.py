"""SmolLM 3: Llama in which every fourth layer knows no positions."""

from dataclasses import dataclass

from polyfleet.graph.kernel_graph import KernelGraph
from polyfleet.models import names
from polyfleet.models.architecture import Architecture
from polyfleet.models.config import ModelConfig
from polyfleet.models.fields import Fields
from polyfleet.models.folder import check_activation, read_sizes, read_windows
from polyfleet.models.gguf_keys import GgufKeys
from polyfleet.models.recorder import Recorder

INTERVAL = 4  # which GGUF files don't state


@dataclass(frozen=True, slots=True, kw_only=True)
class SmolLm3Config(ModelConfig):
    """`turning`: in which layers heads turn."""

    turning: tuple[bool, ...]


def record(config: SmolLm3Config, model: Recorder) -> KernelGraph:
    """Llama's layers."""
    ropes, bias = (model.rope(()), model.rope()), config.attention_bias
    return model.pre_norm_decoder(
        lambda layer, x: model.attention(
            x, ropes[config.turning[layer]], bias=bias, output_bias=bias, window=config.window(layer)
        )
    )


def _read_folder(fields: Fields) -> ModelConfig:
    check_activation(fields)
    sizes = read_sizes(fields, context_length=32768, tied=True, base=2000000.0)
    layers = sizes["num_layers"]
    turning = _pattern(layers, fields.count("no_rope_layer_interval", INTERVAL))
    if fields.has("no_rope_layers"):
        turning = tuple(map(bool, fields.items("no_rope_layers")))
    if len(turning) != layers:
        raise fields.error(f"no_rope_layers must have {layers} numbers, one for each layer, not {len(turning)}")
    on = fields.flag("use_sliding_window", False)
    windows = read_windows(fields, sizes, lambda layer: on and not turning[layer])
    biases = fields.flag("attention_bias", False), fields.flag("mlp_bias", False)
    return SmolLm3Config(**sizes, turning=turning, attention_bias=biases[0], mlp_bias=biases[1], windows=windows)


def _read_gguf(keys: GgufKeys) -> ModelConfig:
    sizes = keys.sizes()
    return SmolLm3Config(**sizes, turning=_pattern(sizes["num_layers"], INTERVAL))


def _pattern(layers: int, interval: int) -> tuple[bool, ...]:
    return tuple((layer + 1) % interval != 0 for layer in range(layers))


SMOLLM3 = Architecture(
    name="smollm3",
    title="SmolLM 3",
    classes=("SmolLM3ForCausalLM",),
    model_types=("smollm3",),
    gguf=("smollm3",),
    read_folder=_read_folder,
    read_gguf=_read_gguf,
    record=record,
    folder_names=names.folder(),
    gguf_names=names.gguf(interleaved=True),
)

"""EXAONE 4: norms behind attention and MLP, norms of heads; where layers have windows, those that see all know no
positions."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from polyfleet.graph.kernel_graph import KernelGraph
from polyfleet.models import names
from polyfleet.models.config import ModelConfig
from polyfleet.models.fields import Fields
from polyfleet.models.folder import check_activation, read_sizes, read_sliding, read_window, spread
from polyfleet.models.gguf_keys import GgufKeys
from polyfleet.models.gguf_keys import read_sliding as gguf_sliding
from polyfleet.models.gguf_keys import read_window as gguf_window
from polyfleet.models.llama import LLAMA
from polyfleet.models.recorder import Recorder

PATTERN = "LLLG"  # of local layers and global ones, where files don't say


@dataclass(frozen=True, slots=True, kw_only=True)
class ExaoneConfig(ModelConfig):
    """`turning`: in which layers heads turn."""

    turning: tuple[bool, ...]


def record(config: ExaoneConfig, model: Recorder) -> KernelGraph:
    """The decoder of norms behind its branches."""
    return model.post_norm_decoder(attend(config, config.turning, model))


def attend(config: ModelConfig, turning: tuple[bool, ...], model: Recorder) -> Callable[[int, int], int]:
    """A layer's attention."""
    ropes = model.rope(()), model.rope()
    return lambda layer, x: model.attention(x, ropes[turning[layer]], head_norms=True, window=config.window(layer))


def _read_folder(fields: Fields) -> ModelConfig:
    check_activation(fields)
    sizes = read_sizes(fields, norm_eps=1e-5)
    return ExaoneConfig(**sizes, **local_layers(sizes, *read_local(fields, sizes["num_layers"])))


def read_local(fields: Fields, layers: int) -> tuple[int, tuple[bool, ...]]:
    """The window, and which layers have it."""
    pattern = PATTERN
    if isinstance(fields.values.get("sliding_window_pattern"), str):
        pattern = fields.text("sliding_window_pattern")
    elif fields.has("sliding_window_pattern"):
        pattern = "L" * (fields.count("sliding_window_pattern", minimum=0) - 1) + "G"
    window = read_window(fields, 4096)
    return window, read_sliding(
        fields, layers, lambda layer: pattern[layer % len(pattern)] == "L" and layer < layers - 1
    )


def _read_gguf(keys: GgufKeys) -> ModelConfig:
    sizes = keys.sizes()
    return ExaoneConfig(**sizes, **local_layers(sizes, *gguf_local(keys, sizes["num_layers"])))


def gguf_local(keys: GgufKeys, layers: int) -> tuple[int, tuple[bool, ...]]:
    """As `read_local`."""
    return gguf_window(keys), gguf_sliding(keys, layers, lambda layer: (layer + 1) % 4 != 0)


def local_layers(sizes: dict[str, Any], window: int, local: tuple[bool, ...]) -> dict[str, Any]:
    """What a configuration says of them: all heads turn where no layer has a window."""
    turning = local if window else (True,) * len(local)
    return {"turning": turning, "windows": spread(window, local, sizes["context_length"])}


EXAONE4 = replace(
    LLAMA,
    name="exaone4",
    title="EXAONE 4",
    classes=("Exaone4ForCausalLM",),
    model_types=("exaone4",),
    gguf=("exaone4",),
    read_folder=_read_folder,
    read_gguf=_read_gguf,
    record=record,
    folder_names=names.folder(names.POST_NORMS),
    gguf_names=names.gguf(names.GGUF_POST_NORMS),
    notes="",
)

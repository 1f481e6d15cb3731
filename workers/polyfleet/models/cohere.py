"""Command R and its successors: attention and MLP side by side behind one layer norm without bias, scaled logits; of
the newer ones layers with a window turn, and those that see all know no positions."""

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

LOGIT_SCALE = 0.0625  # of files that say nothing
PERIOD = 4  # the last of so many layers sees all
BLOCK = {  # what newer files say of their layers, and what all of them are
    **{"position_embedding_type": "rope_gptj", "order_of_interleaved_layers": "local_attn_first"},
    **{"use_gated_activation": True, "use_parallel_block": True, "use_embedding_sharing": True},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CohereConfig(ModelConfig):
    """`turning`: in which layers heads turn."""

    logit_scale: float
    turning: tuple[bool, ...]


def record(config: CohereConfig, model: Recorder) -> KernelGraph:
    """What both branches come to is added to what entered their norm."""
    graph, bias, ropes = model.graph, config.attention_bias, (model.rope(()), model.rope())
    x = model.embedding()
    for layer in model.layers():
        normed, rope = model.norm(x, "attention_norm"), ropes[config.turning[layer]]
        attended = model.attention(normed, rope, bias=bias, output_bias=bias, window=config.window(layer))
        x = graph.add(model.gated_mlp(normed), graph.add(attended, x))
    return model.finish(x, scale=config.logit_scale)


def _read(fields: Fields) -> dict[str, Any]:
    """What both generations state alike."""
    check_activation(fields)
    for key, value in BLOCK.items():
        if fields.has(key) and fields.values[key] != value:
            raise fields.error(f"{key} = {fields.values[key]!r} is not supported by this architecture: {value!r} is")
        fields.read.add(key)
    fields.read.update(("layer_switch", "use_parallel_embedding"))  # the period once more, and how it was trained
    return {
        **read_sizes(fields, context_length=8192, norm_eps=1e-5, tied=True, eps="layer_norm_eps"),
        "attention_bias": fields.flag("attention_bias", False),
        "logit_scale": fields.positive("logit_scale", LOGIT_SCALE),
        **_NORMS,
    }


def _read_folder(fields: Fields) -> ModelConfig:
    """Models whose heads have norms (use_qk_norm) are refused."""
    sizes = _read(fields)
    return CohereConfig(**sizes, turning=(True,) * sizes["num_layers"])


def _read_folder2(fields: Fields) -> ModelConfig:
    sizes, period = _read(fields), fields.count("sliding_window_pattern", PERIOD)
    local = read_sliding(fields, sizes["num_layers"], lambda layer: (layer + 1) % period != 0)
    return CohereConfig(**sizes, **_local(sizes, read_window(fields, 4096), local))


def _read_gguf(keys: GgufKeys) -> ModelConfig:
    sizes = keys.sizes()
    return CohereConfig(**sizes, **_NORMS, logit_scale=_logit_scale(keys), turning=(True,) * sizes["num_layers"])


def _read_gguf2(keys: GgufKeys) -> ModelConfig:
    sizes = keys.sizes()
    local = gguf_sliding(keys, sizes["num_layers"], lambda layer: (layer + 1) % PERIOD != 0)
    return CohereConfig(**sizes, **_NORMS, logit_scale=_logit_scale(keys), **_local(sizes, gguf_window(keys), local))


def _logit_scale(keys: GgufKeys) -> float:
    return keys.fields.positive("logit_scale", LOGIT_SCALE)


def _local(sizes: dict[str, Any], window: int, local: tuple[bool, ...]) -> dict[str, Any]:
    return {"windows": spread(window, local, sizes["context_length"]), "turning": local}


_NORMS: dict[str, Any] = {"layer_norms": True, "norm_biases": False}

COHERE = replace(
    LLAMA,
    name="cohere",
    title="Command R",
    classes=("CohereForCausalLM",),
    model_types=("cohere",),
    gguf=("command-r",),
    read_folder=_read_folder,
    read_gguf=_read_gguf,
    record=record,
    folder_names=names.folder(interleaved=True),
    gguf_names=names.gguf(interleaved=True),
    notes="Aya too; Command R+, whose heads have norms, is not",
)
COHERE2 = replace(
    COHERE,
    name="cohere2",
    title="Command R7B and Command A",
    classes=("Cohere2ForCausalLM",),
    model_types=("cohere2",),
    gguf=("cohere2",),
    read_folder=_read_folder2,
    read_gguf=_read_gguf2,
    notes="",
)

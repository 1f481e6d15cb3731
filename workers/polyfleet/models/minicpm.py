"""MiniCPM and FM9G: Llama with scales of the embedding, of each branch and of what enters the head."""

from collections.abc import Callable
from dataclasses import dataclass

from polyfleet.graph.kernel_graph import KernelGraph
from polyfleet.graph.ops import Rope
from polyfleet.models import names
from polyfleet.models.architecture import Architecture
from polyfleet.models.config import ModelConfig
from polyfleet.models.fields import Fields
from polyfleet.models.folder import check_activation, read_sizes
from polyfleet.models.gguf_keys import GgufKeys
from polyfleet.models.recorder import Recorder

# What GGUF files that state no scales mean: those of MiniCPM 2B.
OLD_EMBEDDING_SCALE, OLD_DEPTH, OLD_BASE = 12.0, 1.4, 256.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Scales:
    """What is multiplied by what."""

    embedding: float
    attention: float = 0.0  # products of queries and keys; 0: by that of a head's width
    residual: float  # attention and MLP before they are added
    head: float  # what enters the head


@dataclass(frozen=True, slots=True, kw_only=True)
class MiniCpmConfig(ModelConfig):
    """One with scales."""

    scales: Scales


def record(config: MiniCpmConfig, model: Recorder) -> KernelGraph:
    """Llama's layers, scaled."""
    attend = scaled_attention(config, config.scales, model, model.rope())
    return scaled_decoder(config.scales, model, attend, lambda x: model.gated_mlp(x, bias=config.mlp_bias))


def scaled_attention(config: ModelConfig, scales: Scales, model: Recorder, rope: Rope) -> Callable[[int, int], int]:
    """Llama's, of whatever layer."""
    bias = config.attention_bias
    return lambda _layer, x: model.attention(x, rope, bias=bias, output_bias=bias, scale=scales.attention)


def scaled_decoder(
    scales: Scales, model: Recorder, attend: Callable[[int, int], int], mlp: Callable[[int], int]
) -> KernelGraph:
    """`attend(layer, x)` and an MLP in each layer, scaled."""
    graph, x = model.graph, model.embedding(scales.embedding)
    for layer in model.layers():
        x = graph.add(graph.scale(attend(layer, model.norm(x, "attention_norm")), scales.residual), x)
        x = graph.add(graph.scale(mlp(model.norm(x, "mlp_norm")), scales.residual), x)
    return model.finish(x, scale=scales.head)


def _read_folder(fields: Fields) -> ModelConfig:
    check_activation(fields)
    sizes = read_sizes(fields, tied=True)
    layers, hidden = sizes["num_layers"], sizes["hidden_size"]
    return MiniCpmConfig(
        **sizes,
        attention_bias=fields.flag("attention_bias", False),
        scales=read_scales(fields, layers, hidden, embedding=1.0, depth=layers**0.5, base=hidden),
    )


def read_scales(fields: Fields, layers: int, hidden: int, *, embedding: float, depth: float, base: float) -> Scales:
    """As MiniCPM's folders state them, or these."""
    return Scales(
        embedding=fields.positive("scale_emb", embedding),
        residual=fields.positive("scale_depth", depth) / layers**0.5,
        head=fields.positive("dim_model_base", base) / hidden,
    )


def _read_gguf(keys: GgufKeys) -> ModelConfig:
    sizes, fields = keys.sizes(), keys.fields
    return MiniCpmConfig(
        **sizes,
        scales=Scales(
            embedding=fields.positive("embedding_scale", OLD_EMBEDDING_SCALE),
            residual=fields.positive("residual_scale", OLD_DEPTH / sizes["num_layers"] ** 0.5),
            head=1 / fields.positive("logit_scale", sizes["hidden_size"] / OLD_BASE),
        ),
    )


MINICPM = Architecture(
    name="minicpm",
    title="MiniCPM and FM9G",
    classes=("MiniCPMForCausalLM", "FM9GForCausalLM"),
    model_types=("minicpm", "fm9g", "fm9g7b"),
    gguf=("minicpm",),
    read_folder=_read_folder,
    read_gguf=_read_gguf,
    record=record,
    folder_names=names.folder(),
    gguf_names=names.gguf(interleaved=True),
    notes="九格; the folder's own code is never executed",
)

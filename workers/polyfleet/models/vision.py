"""Towers that see images: SigLIP's, whose rows a connector turns into rows of a language model, as Idefics3 has it."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from polyfleet.graph.kernel_graph import KernelGraph
from polyfleet.graph.ops import OpKind
from polyfleet.models.architecture import TensorNames
from polyfleet.models.config import ModelConfig
from polyfleet.models.recorder import Recorder

CHANNELS = 3  # red, green, blue


@dataclass(frozen=True, kw_only=True)
class VisionConfig(ModelConfig):
    """A tower over square crops of `side` pixels, cut into patches, `shuffle` x `shuffle` of which become one row.

    `mean` and `deviation` are of each channel's values from 0 to 1. `vocabulary_size` counts positions of patches.
    """

    side: int
    patch: int
    shuffle: int
    output_size: int  # columns of the language model's rows
    token_id: int  # whose embeddings the rows replace
    factor: float  # makes values from 0 to 1 of a pixel's bytes
    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    activation: OpKind

    @property
    def patches(self) -> int:
        """Of a crop along one of its sides."""
        return self.side // self.patch

    @property
    def patch_size(self) -> int:
        """Numbers of a patch."""
        return CHANNELS * self.patch**2

    @property
    def rows(self) -> int:
        """Of a crop, in the language model."""
        return (self.patches // self.shuffle) ** 2

    @property
    def crop_bytes(self) -> int:
        """Of a crop's pixels, a byte for each channel."""
        return CHANNELS * self.side**2

    @cached_property
    def order(self) -> NDArray[np.int64]:
        """[patches²] of a crop's patches, in such an order that those which become one row are neighbours."""
        rows = self.patches // self.shuffle
        grid = np.arange(self.patches**2).reshape(rows, self.shuffle, rows, self.shuffle)
        order: NDArray[np.int64] = grid.transpose(0, 2, 1, 3).reshape(-1)
        return order

    @cached_property
    def positions(self) -> NDArray[np.int32]:
        """[patches²] the position of each patch in `order`, as the table has them: that of its place in the crop.

        The table may be finer or coarser than the crop. Places lie on its boundaries, so they are told apart in
        float32, as the towers were trained.
        """
        side = round(self.vocabulary_size**0.5)
        places = torch.arange(self.patches, dtype=torch.float32) * (1.0 / torch.tensor(self.patches))
        boundaries = torch.arange(1 / side, 1.0, 1 / side)
        bucket = torch.bucketize(torch.clamp(places, max=1.0 - 1e-6), boundaries, right=True).numpy()
        grid: NDArray[np.int32] = (bucket[:, None] * side + bucket).reshape(-1)[self.order].astype(np.int32)
        return grid


def record_tower(config: VisionConfig, model: Recorder) -> KernelGraph:
    """From patches [T, patch_size] and the ids of their positions to hidden states [T, hidden_size]."""
    graph = model.graph
    x = model.linear(graph.input(config.patch_size), "patches", config.hidden_size, bias=True)
    x = graph.add(x, model.embedding())
    rope, cache = model.rope(), graph.cache(config.num_kv_heads, config.head_dim)
    for _ in model.layers():
        normed = model.layer_norm(x, "attention_norm")
        x = graph.add(model.attention(normed, rope, cache=cache, bias=True, output_bias=True), x)
        inner = model.linear(model.layer_norm(x, "mlp_norm"), "up", config.intermediate_size, bias=True)
        x = graph.add(model.linear(graph.unary(config.activation, inner), "down", config.hidden_size, bias=True), x)
    return graph.freeze((model.layer_norm(x, "norm"),))


def record_connector(config: VisionConfig, model: Recorder) -> KernelGraph:
    """From the hidden states of `shuffle`² patches side by side to rows [., output_size]."""
    x = model.graph.input(config.shuffle**2 * config.hidden_size)
    return model.graph.freeze((model.linear(x, "connector", config.output_size),))


NAMES = TensorNames(
    {
        "vision_model.embeddings.patch_embedding": "patches",
        "vision_model.embeddings.position_embedding": "embedding",
        "vision_model.post_layernorm": "norm",
        "connector.modality_projection.proj": "connector",
    },
    "vision_model.encoder.layers.",
    {
        "layer_norm1": "attention_norm",
        "layer_norm2": "mlp_norm",
        "self_attn.q_proj": "q",
        "self_attn.k_proj": "k",
        "self_attn.v_proj": "v",
        "self_attn.out_proj": "o",
        "mlp.fc1": "up",
        "mlp.fc2": "down",
    },
    outer={"model.": ""},
)

"""A small random Llama in memory, the same on every machine: what conformance computes with."""

import torch

from polyfleet.kernels.weights import Weight, WeightFormat
from polyfleet.loading.model import LoadedModel
from polyfleet.models.config import ModelConfig
from polyfleet.models.registry import weight_shapes

CONFIG = ModelConfig(
    architecture="llama",
    name="conformance",
    vocabulary_size=512,
    hidden_size=128,
    num_layers=3,
    num_heads=4,
    num_kv_heads=2,
    head_dim=32,
    intermediate_size=256,
    norm_eps=1e-5,
    inverse_frequencies=tuple(10000.0 ** (-index / 16) for index in range(16)),
    context_length=512,
    tied_embeddings=False,
)


def synthetic_model(seed: int = 0) -> LoadedModel:
    """Random weights of a scale that keeps activations near 1."""
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, (rows, columns) in weight_shapes(CONFIG).items():
        data = torch.randn(rows, columns, generator=generator)
        if rows == 1:
            data = 1 + 0.1 * data
        elif name != "embedding":
            data = data / columns**0.5
        weights[name] = Weight(name, WeightFormat.F32, rows, columns, data)
    return LoadedModel("synthetic", CONFIG, weights, None)

"""A small random Llama in memory, and ops that it lacks, the same on every machine: what conformance computes with."""

from collections.abc import Mapping

import torch

from polyfleet.graph.kernel_graph import GraphBuilder, KernelGraph
from polyfleet.graph.ops import DeltaRule, Experts, OpKind, Route, StateSpace
from polyfleet.kernels.weights.weight import Weight, WeightFormat, Weights
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


# What ops that CONFIG's graph lacks take beside its own weights.
RARE = {
    **{"rare.taps": (1, 3 * 128), "rare.gates": (8, 128), "rare.steps": (4, 128)},
    **dict.fromkeys(("rare.decay", "rare.shift", "rare.skip"), (1, 4)),
}


def synthetic_model(seed: int = 0) -> LoadedModel:
    """Random weights of a scale that keeps activations near 1."""
    return LoadedModel("synthetic", CONFIG, _random(weight_shapes(CONFIG), seed), None)


def rare_weights(seed: int = 1) -> dict[str, Weight]:
    """Those of `rare_ops` that the model has not."""
    return _random(RARE, seed)


def _random(shapes: Mapping[str, tuple[int, int]], seed: int) -> dict[str, Weight]:
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, (rows, columns) in shapes.items():
        data = torch.randn(rows, columns, generator=generator)
        if rows == 1:
            data = 1 + 0.1 * data
        elif name != "embedding":
            data = data / columns**0.5
        weights[name] = Weight(name, WeightFormat.F32, rows, columns, data)
    return weights


def rare_ops(weights: Weights) -> KernelGraph:
    """The ops of users' graphs, mixtures of one expert with a gate and without, latent attention of one head, and what
    keeps a state; but argmax, whose columns are no numbers that are nearly right."""
    rows = {name: weights[name].rows for name in ("norm", "layers.0.q", "rare.gates", "rare.steps")}
    builder = GraphBuilder(rows, {name: weight.columns for name, weight in weights.items()})
    x = builder.embedding("embedding")
    for kind in (OpKind.RELU, OpKind.GELU, OpKind.GELU_TANH, OpKind.SIGMOID):
        builder.unary(kind, x)
    builder.soft_cap(builder.scale(x, 0.5), 1.0)
    share = builder.route(builder.linear(x, "norm"), Route(1, 1, sigmoid=True, renormalise=False))
    builder.experts(x, share, ("layers.0.gate", "layers.0.up", "layers.0.down"), Experts(1, 1))
    builder.experts(x, share, ("layers.0.up", "layers.0.down"), Experts(1, 1))
    latent = builder.cache(1, 2 * builder.widths[x], latent=True)
    builder.latent_write(x, x, latent)
    builder.latent_attention(x, x, latent, 1, builder.widths[x] ** -0.5, builder.widths[x])
    builder.head_linear(x, "layers.0.q", 1)
    mixed = builder.causal_conv(x, "rare.taps", 3)
    builder.delta_rule(mixed, builder.linear(x, "rare.gates"), ("rare.decay", "rare.shift"), DeltaRule(0, 2, 4, 16, 16))
    space = StateSpace(0, key_heads=2, value_heads=4, key_width=16, value_width=16)
    builder.ssm_scan(mixed, builder.linear(x, "rare.steps"), ("rare.decay", "rare.shift", "rare.skip"), space)
    return builder.freeze((builder.layer_norm(x, "norm", "norm", 1e-5),))

"""The recorded program of a Llama model: its ops, operands and widths."""

from dataclasses import replace

import pytest
import torch

from polyfleet.kernels.graph import KernelGraph, OpKind
from polyfleet.kernels.weights import Weight, WeightFormat
from polyfleet.models.config import ModelConfig
from polyfleet.models.registry import ARCHITECTURES, record

CONFIG = ModelConfig(
    architecture="llama",
    name="tiny",
    vocabulary_size=50,
    hidden_size=16,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=4,
    intermediate_size=24,
    norm_eps=1e-5,
    inverse_frequencies=(1.0, 0.1),
    context_length=64,
    tied_embeddings=False,
)


def graph_of(config: ModelConfig) -> KernelGraph:
    shapes = ARCHITECTURES["llama"].weight_shapes(config)
    weights = {
        name: Weight(name, WeightFormat.F32, rows, columns, torch.empty(rows, columns))
        for name, (rows, columns) in shapes.items()
    }
    return record(config, weights)


def test_program_of_one_layer() -> None:
    graph = graph_of(replace(CONFIG, num_layers=1))
    assert [op.kind for op in graph.ops] == [
        OpKind.EMBEDDING,
        OpKind.RMS_NORM,
        OpKind.LINEAR,
        OpKind.ROPE_CACHE,
        OpKind.PAGED_ATTENTION,
        OpKind.LINEAR,
        OpKind.ADD_RMS_NORM,
        OpKind.LINEAR,
        OpKind.SILU_MUL,
        OpKind.LINEAR,
        OpKind.ADD_RMS_NORM,
        OpKind.SELECT_ROWS,
        OpKind.LINEAR,
    ]
    assert graph.ops[2].weights == ("layers.0.q", "layers.0.k", "layers.0.v")
    assert graph.ops[10].weights == ("norm",)
    assert graph.hidden == graph.ops[10].outputs[0]
    assert graph.logits == graph.ops[-1].outputs[0]


def test_widths() -> None:
    graph = graph_of(CONFIG)
    widths = {op.kind: graph.widths[op.outputs[0]] for op in graph.ops[:9]}
    assert widths[OpKind.EMBEDDING] == 16
    assert widths[OpKind.ROPE_CACHE] == 16
    assert widths[OpKind.SILU_MUL] == 24
    assert graph.widths[graph.ops[2].outputs[0]] == 16 + 2 * 8
    assert graph.widths[graph.logits] == 50


def test_every_value_is_made_before_it_is_read_and_every_weight_is_used() -> None:
    config = replace(CONFIG, attention_bias=True, mlp_bias=True)
    graph = graph_of(config)
    made = {0}
    for op in graph.ops:
        assert set(op.inputs) <= made
        assert not made & set(op.outputs)
        made |= set(op.outputs)
    assert made == set(range(len(graph.widths)))
    used = {name for op in graph.ops for name in (*op.weights, *op.biases)}
    assert used == set(ARCHITECTURES["llama"].weight_shapes(config))


def test_layers_have_their_own_cache() -> None:
    layers = [op.layer for op in graph_of(CONFIG).ops if op.kind in (OpKind.ROPE_CACHE, OpKind.PAGED_ATTENTION)]
    assert layers == [0, 0, 1, 1]


def test_tied_embeddings_are_the_head() -> None:
    assert graph_of(replace(CONFIG, tied_embeddings=True)).ops[-1].weights == ("embedding",)
    assert graph_of(CONFIG).ops[-1].weights == ("lm_head",)


def test_biases_stand_beside_their_weights() -> None:
    ops = graph_of(replace(CONFIG, attention_bias=True)).ops
    assert ops[2].biases == ("layers.0.q.bias", "layers.0.k.bias", "layers.0.v.bias")
    assert ops[5].biases == ("layers.0.o.bias",)
    assert ops[7].biases == ()


def test_attention_scale() -> None:
    assert graph_of(CONFIG).params.attention_scale == pytest.approx(0.5)

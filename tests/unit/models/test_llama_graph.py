"""The recorded program of a Llama model: its ops, operands and widths."""

from dataclasses import replace

import torch
from tests.support.small_config import SMALL

from polyfleet.graph.kernel_graph import KernelGraph, PerToken
from polyfleet.graph.ops import Attention, OpKind, of
from polyfleet.kernels.weights.weight import Weight, WeightFormat
from polyfleet.models.config import ModelConfig
from polyfleet.models.registry import record, weight_shapes

CONFIG = replace(SMALL, num_layers=2, vocabulary_size=50, hidden_size=16, head_dim=4, inverse_frequencies=(1.0, 0.1))


def graph_of(config: ModelConfig) -> KernelGraph:
    shapes = weight_shapes(config)
    weights = {
        name: Weight(name, WeightFormat.F32, rows, columns, torch.empty(rows, columns))
        for name, (rows, columns) in shapes.items()
    }
    return record(config, weights)


def test_program_of_one_layer() -> None:
    graph = graph_of(replace(CONFIG, num_layers=1))
    attention = "rms_norm linear rope linear rope linear cache_write paged_attention linear add"
    mlp = "rms_norm linear silu linear mul linear add"
    assert [op.kind.value for op in graph.ops] == f"embedding {attention} {mlp} rms_norm select_rows linear".split()
    assert graph.ops[2].weights == ("layers.0.q",)
    assert graph.hidden == graph.ops[-3].outputs[0]
    assert graph.logits == graph.ops[-1].outputs[0]


def test_widths_and_caches() -> None:
    graph = graph_of(CONFIG)
    widths = [graph.widths[op.outputs[0]] for op in graph.ops[:9] if op.outputs]
    assert widths == [16, 16, 16, 16, 8, 8, 8, 16]
    assert graph.widths[graph.logits] == 50
    assert graph.caches == (PerToken(2, 4), PerToken(2, 4))


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
    assert used == set(weight_shapes(config))


def test_layers_have_their_own_cache() -> None:
    assert [op.cache for op in graph_of(CONFIG).ops if op.cache is not None] == [0, 0, 1, 1]


def test_tied_embeddings_are_the_head() -> None:
    assert graph_of(replace(CONFIG, tied_embeddings=True)).ops[-1].weights == ("embedding",)
    assert graph_of(CONFIG).ops[-1].weights == ("lm_head",)


def test_biases_stand_beside_their_weights() -> None:
    ops = graph_of(replace(CONFIG, attention_bias=True)).ops
    biases = {op.weights: op.biases for op in ops if op.kind is OpKind.LINEAR}
    assert biases["layers.0.q",] == ("layers.0.q.bias",)
    assert biases["layers.0.o",] == ("layers.0.o.bias",)
    assert biases["layers.0.gate",] == ()


def test_attention_has_heads_and_scale() -> None:
    op = next(op for op in graph_of(CONFIG).ops if op.kind is OpKind.PAGED_ATTENTION)
    assert of(op, Attention) == Attention(cache=0, heads=4, kv_heads=2, width=4, scale=0.5)

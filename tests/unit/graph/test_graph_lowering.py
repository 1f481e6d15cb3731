"""What lowerings make of graphs: the same numbers, and whatever anybody else reads is still made."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from polyfleet.conformance.synthetic import synthetic_model
from polyfleet.graph.kernel_graph import GraphBuilder, KernelGraph
from polyfleet.graph.lowering import FUSED, fuse, select_early
from polyfleet.graph.narrow import narrow
from polyfleet.graph.ops import OpKind, Rope
from polyfleet.kernels.context import KernelContext
from polyfleet.kernels.dispatch import Target, choose
from polyfleet.kernels.step import Step, make_step
from polyfleet.kernels.torch.reference import REFERENCE
from polyfleet.kvcache.storage import KvStorage
from polyfleet.models.registry import record

ROPE = Rope(4, (1.0, 0.1))
ROWS = {"q": 8, "k": 4, "v": 4, "gate": 6, "up": 6}
COLUMNS = {"rows": 8}


def kinds(graph: KernelGraph) -> list[OpKind]:
    return [op.kind for op in graph.ops]


def check_order(graph: KernelGraph) -> None:
    """Every value is made once, before it is read, and none is left over."""
    made = {0}
    for op in graph.ops:
        assert set(op.inputs) <= made
        assert not made & set(op.outputs)
        made |= set(op.outputs)
    assert made == set(range(len(graph.widths)))
    assert {graph.hidden, graph.logits} <= made


def builder() -> tuple[GraphBuilder, int]:
    graph = GraphBuilder(ROWS, COLUMNS)
    return graph, graph.embedding("rows")


def attention(graph: GraphBuilder, x: int, *, biases: tuple[str, ...] = (), other: Rope = ROPE) -> int:
    query, key = graph.rope(graph.linear(x, "q", biases=biases), ROPE), graph.rope(graph.linear(x, "k"), other)
    cache = graph.cache(1, 4)
    graph.cache_write(key, graph.linear(x, "v"), cache)
    return graph.paged_attention(query, cache, heads=2, scale=0.5)


def test_a_model_gives_the_same_numbers_fused_and_selected_early() -> None:
    model = synthetic_model()
    plain = record(model.config, model.weights)
    hidden, logits = run(plain)
    fused_hidden, fused_logits = run(fuse(plain))
    assert torch.equal(fused_hidden, hidden)
    assert torch.equal(fused_logits, logits)
    assert torch.equal(run(select_early(fuse(plain)))[1], logits)
    assert torch.equal(run(select_early(plain))[1], logits)


def run(graph: KernelGraph, step: Step | None = None) -> tuple[Tensor, Tensor]:
    """First and last output of a step, by the reference: of five rows, of which the last and the middle are wanted."""
    check_order(graph)
    model, device = synthetic_model(), torch.device("cpu")
    storage = KvStorage.allocate(graph.caches, 2, 4, torch.float32, device)
    context = KernelContext(model.weights, device, torch.float32, storage.caches, 4)
    table = choose(REFERENCE, Target("cpu", torch.float32))
    step = step or replace(make_step([(range(3, 8), 0, (0, 1))], 4, device), selected=torch.tensor([4, 2]))
    values: dict[int, Tensor] = {0: step.token_ids}
    for op in graph.ops:
        result = table[op.kind].bind(op, context)(step, *[values[value] for value in op.inputs])
        values.update(zip(op.outputs, result if isinstance(result, tuple) else (result,), strict=True))
    return values[graph.hidden], values[graph.logits]


def test_steps_of_single_rows_give_the_same_numbers_in_five_ops_a_layer() -> None:
    model = synthetic_model()
    graph = fuse(record(model.config, model.weights))
    narrowed = narrow(graph)
    assert narrowed is not None
    step = make_step([((3,), 0, (0,)), ((5,), 0, (1,))], 4, torch.device("cpu"))
    torch.testing.assert_close(run(narrowed, step)[1], run(graph, step)[1], atol=1e-5, rtol=1e-5)
    assert kinds(narrowed)[:2] == [OpKind.EMBEDDING, OpKind.GAIN]
    layer = [OpKind.NORM_LINEAR, OpKind.ROPE_ATTENTION, OpKind.LINEAR_ADD, OpKind.NORM_SILU_MUL, OpKind.LINEAR_ADD]
    assert kinds(narrowed)[2:] == [*layer * model.config.num_layers, OpKind.NORM_LINEAR]
    assert narrow(replace(graph, ops=tuple(op for op in graph.ops if op.kind is not OpKind.LINEAR))) is None


def test_every_layer_of_llama_is_fused() -> None:
    model = synthetic_model()
    layers = model.config.num_layers
    fused = fuse(record(model.config, model.weights))
    counts = {kind: kinds(fused).count(kind) for kind in OpKind}
    assert counts[OpKind.ROPE_CACHE] == counts[OpKind.SILU_MUL] == layers
    assert counts[OpKind.ADD_RMS_NORM] == 2 * layers
    assert counts[OpKind.LINEAR] == 4 * layers + 1
    for gone in (OpKind.ADD, OpKind.MUL, OpKind.SILU, OpKind.ROPE, OpKind.CACHE_WRITE):
        assert counts[gone] == 0


@pytest.mark.parametrize("kind", sorted(FUSED))
def test_only_what_an_executor_has_is_made(kind: OpKind) -> None:
    model = synthetic_model()
    fused = fuse(record(model.config, model.weights), {kind})
    check_order(fused)
    assert set(kinds(fused)) & FUSED == {kind}


def test_a_value_with_another_reader_is_not_fused_away() -> None:
    graph, x = builder()
    gate = graph.silu(graph.linear(x, "gate"))
    gated = graph.mul(gate, graph.linear(x, "up"))
    recorded = graph.finish(hidden=gate, logits=gated)
    assert fuse(recorded) == recorded


@pytest.mark.parametrize("reader", ["query", "key", "value"])
def test_attention_whose_parts_have_other_readers_is_not_fused(reader: str) -> None:
    graph, x = builder()
    attended = attention(graph, x)
    inner = {op.weights[0]: op.outputs[0] for op in graph.ops if op.kind is OpKind.LINEAR}
    recorded = graph.finish(hidden=inner[{"query": "q", "key": "k", "value": "v"}[reader]], logits=attended)
    assert OpKind.ROPE_CACHE not in kinds(fuse(recorded))


def test_unlike_ropes_and_a_bias_of_one_alone_are_not_fused() -> None:
    for options in ({"biases": ("q.bias",)}, {"other": replace(ROPE, frequencies=(1.0, 0.2))}):
        graph, x = builder()
        attended = attention(graph, x, **options)
        assert OpKind.ROPE_CACHE not in kinds(fuse(graph.finish(x, attended)))
    graph, x = builder()
    assert OpKind.ROPE_CACHE in kinds(fuse(graph.finish(x, attention(graph, x))))


def test_a_sum_that_others_read_is_still_made() -> None:
    graph, x = builder()
    total = graph.add(x, x)
    normed = graph.rms_norm(total, "n", 1e-5)
    again = graph.rms_norm(total, "n", 1e-5)
    fused = fuse(graph.finish(hidden=graph.add(normed, again), logits=total))
    check_order(fused)
    assert kinds(fused) == [OpKind.EMBEDDING, OpKind.ADD_RMS_NORM, OpKind.RMS_NORM, OpKind.ADD]
    assert fused.logits == fused.ops[1].outputs[1]


def test_selecting_early_needs_an_attention_and_row_wise_ops_behind_it() -> None:
    graph, x = builder()
    recorded = graph.finish(x, graph.linear(graph.select_rows(x), "q"))
    assert select_early(recorded) is recorded


def test_inputs_and_outputs_are_kept_whoever_reads_them() -> None:
    graph = GraphBuilder(ROWS, COLUMNS)
    unread, x = graph.input(5), graph.input(8)
    total = graph.add(x, x)
    normed = graph.rms_norm(total, "norm", 1e-5)
    gated = graph.mul(graph.silu(graph.linear(normed, "gate")), graph.linear(normed, "up"))
    columns = graph.argmax(gated)
    fused = fuse(graph.freeze((x, total, columns, gated)))
    assert kinds(fused) == [OpKind.ADD_RMS_NORM, OpKind.LINEAR, OpKind.SILU_MUL, OpKind.ARGMAX]
    assert [fused.widths[value] for value in fused.inputs] == [5, 8]
    assert [fused.widths[value] for value in fused.outputs] == [8, 8, 1, 6]
    assert fused.outputs[0] == fused.inputs[1] == fused.ops[0].inputs[0]
    assert fused.outputs[1] == fused.ops[0].outputs[1]
    assert unread == 1

"""From graphs to programs: what is fused, which rows are finished, that no value is overwritten while it is needed."""

from collections.abc import Callable

import pytest
import torch
from tests.support.cpu_graphs import FusedBuilder, Params
from tests.support.small_config import SMALL

from polyfleet.graph.kernel_graph import KernelGraph
from polyfleet.graph.lowering import fuse, select_early
from polyfleet.graph.ops import OpKind
from polyfleet.kernels.cpu.buffers import Buffers, place
from polyfleet.kernels.cpu.program import Program, plan, to_stages
from polyfleet.kernels.cpu.stages import NONE, Stage, StageKind
from polyfleet.kernels.weights.weight import Weight, WeightFormat
from polyfleet.models.config import ModelConfig
from polyfleet.models.registry import record, weight_shapes


def llama(config: ModelConfig = SMALL) -> tuple[KernelGraph, Callable[[str], int]]:
    weights = {
        name: Weight(name, WeightFormat.F32, rows, columns, torch.empty(0))
        for name, (rows, columns) in weight_shapes(config).items()
    }
    return record(config, weights), lambda name: weights[name].rows


def kinds(program: Program) -> list[str]:
    return [stage.kind.name + (f"+{stage.epilogue.name}" if stage.epilogue else "") for stage in program.stages]


def test_a_layer_of_llama_is_five_stages() -> None:
    graph, rows = llama()
    program = plan(graph, rows, Buffers(), keep_hidden=False)
    layer = ["LINEAR+ROPE_CACHE", "ATTENTION", "LINEAR", "LINEAR+SILU_MUL", "LINEAR"]
    last = ["LINEAR+ROPE_CACHE", "ATTENTION", "SELECT", "LINEAR", "LINEAR+SILU_MUL", "LINEAR"]
    assert kinds(program) == ["EMBEDDING", *layer, *layer, *last, "LINEAR"]
    assert all(bool(stage.norm) == (number % 5 in (1, 4)) for number, stage in enumerate(program.stages[:14]))


def test_only_selected_rows_are_finished_unless_hidden_states_are_kept() -> None:
    graph, rows = llama()
    early = plan(graph, rows, Buffers(), keep_hidden=False)
    first = next(number for number, stage in enumerate(early.stages) if stage.selected)
    assert early.stages[first].kind is StageKind.ATTENTION
    assert early.stages[first].layer == 2
    assert all(stage.selected or stage.kind is StageKind.SELECT for stage in early.stages[first:])
    assert len(early.outputs) == 1

    whole = plan(graph, rows, Buffers(), keep_hidden=True)
    assert [stage.kind for stage in whole.stages[-3:]] == [StageKind.NORM, StageKind.SELECT, StageKind.LINEAR]
    assert [stage.selected for stage in whole.stages[-3:]] == [False, False, True]
    assert whole.stages[-3].output == whole.outputs[0]
    assert whole.stages[-1].output == whole.outputs[-1]


def test_heads_and_gates_off_the_grid_are_not_fused() -> None:
    params = Params(2, 1, 24)
    graph = FusedBuilder(params, {"q": 48, "k": 24, "v": 24, "a": 8, "b": 16}, {"rows": 32})
    x = graph.embedding("rows")
    graph.attention(graph.rope_cache(graph.linear(x, "q", "k", "v"), 0), 0)
    graph.silu_mul(graph.linear(x, "a", "b"))
    stages = to_stages(graph.finish(x, x), lambda name: graph.row_counts[name], ())
    assert [stage.kind.name for stage in stages] == [
        *("EMBEDDING", "LINEAR", "ROPE_CACHE", "ATTENTION", "LINEAR", "SILU_MUL")
    ]


def test_a_value_with_two_readers_is_not_fused_away() -> None:
    graph = FusedBuilder(Params(1, 1, 16), {"a": 16, "b": 16}, {"rows": 32})
    normed = graph.norm(graph.embedding("rows"), "n")
    gate_up = graph.linear(normed, "a", "b")
    gated, read_again = graph.silu_mul(gate_up), graph.silu_mul(gate_up)
    other = graph.linear(normed, "a")
    stages = to_stages(graph.finish(other, gated), lambda name: graph.row_counts[name], (gated, read_again, other))
    assert [stage.kind.name for stage in stages] == ["EMBEDDING", "NORM", "LINEAR", "SILU_MUL", "SILU_MUL", "LINEAR"]
    assert not any(stage.epilogue for stage in stages)


def test_selecting_early_needs_row_wise_ops() -> None:
    graph = FusedBuilder(Params(1, 1, 16), {"a": 16}, {"rows": 48})
    x = graph.embedding("rows")
    selected = graph.select_rows(x)
    recorded = graph.finish(x, graph.linear(selected, "a"))
    assert select_early(recorded) is recorded  # no attention
    whole = fuse(llama()[0])
    assert [op.kind for op in select_early(whole).ops].count(OpKind.SELECT_ROWS) == 2  # attention and residual


@pytest.mark.parametrize("keep_hidden", [False, True])
def test_no_buffer_is_overwritten_while_it_is_needed(keep_hidden: bool) -> None:
    graph, rows = llama()
    source = fuse(graph) if keep_hidden else select_early(fuse(graph))
    kept = {source.logits, source.hidden} if keep_hidden else {source.logits}
    stages = to_stages(source, rows, kept)
    buffers = Buffers([source.widths[source.logits]])  # another program's
    placed_stages, placed = place(stages, source.widths, kept, buffers)
    holder: dict[int, int] = {}  # buffer -> value
    for stage, put in zip(stages, placed_stages, strict=True):
        for value, buffer in ((stage.input, put.input), (stage.residual, put.residual)):
            assert value == NONE or holder[buffer] == value
        assert not set(stage_buffers(put, "reads")) & set(stage_buffers(put, "writes"))
        for value, buffer in ((stage.output, put.output), (stage.residual_out, put.residual_out)):
            if value != NONE:
                holder[buffer] = value
                assert buffers.widths[buffer] == source.widths[value]
    assert all(holder[placed[value]] == value for value in kept)
    assert len(buffers.widths) < 12  # not one for each value


def stage_buffers(stage: Stage, which: str) -> tuple[int, ...]:
    return stage.reads if which == "reads" else stage.writes


def test_programs_share_buffers() -> None:
    graph, rows = llama()
    buffers = Buffers()
    plan(graph, rows, buffers, keep_hidden=True)
    before = len(buffers.widths)
    plan(graph, rows, buffers, keep_hidden=False)
    assert len(buffers.widths) <= before + 1


def test_a_sum_that_is_read_before_its_norm_is_not_made_by_the_linear() -> None:
    graph = FusedBuilder(Params(), {"a": 32}, {"rows": 32})
    x, y = graph.embedding("rows"), graph.embedding("rows")
    normed, total = graph.add_rms_norm(x, y, "n")
    read = graph.mul(total, y)
    last = graph.linear(normed, "a")
    stages = to_stages(graph.freeze((read, last)), lambda name: graph.row_counts[name], (read, last))
    assert [stage.kind.name for stage in stages] == ["EMBEDDING", "EMBEDDING", "NORM", "MUL", "LINEAR"]
    assert stages[2].residual_out == total

    later = FusedBuilder(Params(), {"a": 32}, {"rows": 32})
    x, y = later.embedding("rows"), later.embedding("rows")
    normed, total = later.add_rms_norm(x, y, "n")
    last = later.linear(normed, "a")
    read = later.mul(total, y)
    stages = to_stages(later.freeze((read, last)), lambda name: later.row_counts[name], (read, last))
    assert [stage.kind.name for stage in stages] == ["EMBEDDING", "EMBEDDING", "LINEAR", "MUL"]


def test_inputs_have_buffers_until_they_were_read() -> None:
    graph = FusedBuilder(Params(), {}, {})
    x, y, kept = (graph.input(8) for _ in range(3))
    total = graph.add(x, y)
    for _ in range(5):
        total = graph.mul(total, y)
    buffers = Buffers()
    program = plan(graph.freeze((kept, total)), lambda name: 0, buffers, keep_hidden=True)
    assert len(set(program.inputs)) == 3
    assert program.outputs[0] == program.inputs[2]
    assert program.outputs[0] not in {stage.output for stage in program.stages}
    assert {stage.input for stage in program.stages[:1]} == {program.inputs[0]}
    assert all(stage.residual == program.inputs[1] for stage in program.stages)
    assert len(buffers.widths) == 4  # x's is used again


def test_each_norm_has_its_own_eps() -> None:
    graph = FusedBuilder(Params(), {"a": 16, "b": 16}, {"rows": 16})
    x = graph.embedding("rows")
    first, second = graph.rms_norm(x, "n", 0.5), graph.rms_norm(x, "n", 0.25)
    last = graph.add(graph.linear(first, "a"), graph.layer_norm(second, "n", "m", 0.125))
    stages = to_stages(graph.freeze((last,)), lambda name: graph.row_counts[name], (last,))
    assert {stage.kind.name: stage.eps for stage in stages if stage.norm} == {
        "LINEAR": 0.5,
        "NORM": 0.25,
        "LAYER_NORM": 0.125,
    }

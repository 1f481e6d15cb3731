"""Values that share buffers on a Vulkan device: never two that are needed at once."""

import pytest
from tests.support.tiny_models import TinyShape, write_folder

from polyfleet.graph.kernel_graph import GraphBuilder, KernelGraph
from polyfleet.graph.lowering import fuse
from polyfleet.kernels.vulkan.buffers import row_bytes, selected_values, share_buffers
from polyfleet.loading.load import load_model
from polyfleet.models.registry import record


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> KernelGraph:
    shape = TinyShape(layers=12)
    model = load_model(str(write_folder(tmp_path_factory.mktemp("buffers"), shape)))
    return fuse(record(model.config, model.weights))


def test_what_is_read_later_is_not_written_over(graph: KernelGraph) -> None:
    owners, held = share_buffers(graph), {0: 0}
    for op in graph.ops:
        assert [held[owners[value]] for value in op.inputs] == list(op.inputs)
        for value in op.outputs:
            assert owners[value] not in {owners[each] for each in op.inputs}  # a shader can't read what it writes
            held[owners[value]] = value
    assert held[owners[graph.hidden]] == graph.hidden
    assert held[owners[graph.logits]] == graph.logits


def test_buffers_have_the_shape_of_each_value_in_them(graph: KernelGraph) -> None:
    selected = selected_values(graph)
    for value, owner in enumerate(share_buffers(graph)):
        assert graph.widths[owner] == graph.widths[value]
        assert (owner in selected) == (value in selected)


def test_a_deep_graph_takes_no_more_than_a_flat_one(graph: KernelGraph) -> None:
    """Twelve layers make do with the buffers of one."""
    assert len(set(share_buffers(graph))) < 12
    row, selected = row_bytes(graph)
    assert row < 4 * 64 * 16
    assert selected == 4 * (64 + 96)


def test_inputs_and_outputs_have_buffers_of_their_own() -> None:
    builder = GraphBuilder({}, {})
    x, y = builder.input(8), builder.input(8)
    first = builder.add(x, y)
    values = [first]
    for _ in range(5):
        values.append(builder.mul(values[-1], y))
    owners = share_buffers(builder.freeze((x, first, values[-1])))
    assert owners[x] == x
    assert owners[y] == y
    assert owners[first] == first
    assert {owners[value] for value in values[1:]}.isdisjoint({x, y, first})
    assert len(set(owners)) < len(owners)

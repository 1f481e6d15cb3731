"""Latent attention and matrices of heads in the CPU library against the implementations in torch."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.support.cpu_graphs import FusedBuilder, Rig, available_sets, dense, needs_library, random_weight, shuffled
from tests.support.kernel_cases import make_context, make_step

from polyfleet.graph.ops import Attention, Heads, Op, OpKind, Rope
from polyfleet.kernels.torch.latent import attend_latent, bind_head_linear
from polyfleet.kernels.torch.reference import rotate
from polyfleet.kernels.weights.weight import WeightFormat

pytestmark = [needs_library, pytest.mark.parametrize("instruction_set", available_sets())]

HEADS, LATENT, REST, ROWS = 3, 32, 16, 70
ROPE = Rope(REST, tuple(10.0 ** (-2 * i / REST) for i in range(REST // 2)), 1.25)
TOLERANCE = {WeightFormat.F32: 1e-5, WeightFormat.BF16: 2e-2}


@pytest.mark.parametrize("form", [WeightFormat.F32, WeightFormat.BF16, WeightFormat.Q8_0, WeightFormat.Q4_1])
def test_matrices_of_heads(instruction_set: str, form: WeightFormat) -> None:
    rows = np.random.default_rng(1).standard_normal((ROWS, HEADS * 64), dtype=np.float32)
    weight = random_weight("w", form, HEADS * 48, 64)
    context = replace(make_context(), weights={"w": weight})
    op = Op(OpKind.HEAD_LINEAR, (1,), (2,), ("w",), attributes=Heads(HEADS))
    expected = bind_head_linear(op, context)(make_step([(1, 0)]), torch.from_numpy(rows)).numpy()
    rig = Rig(
        rows, lambda graph, x: graph.head_linear(x, "w", HEADS), weight, instruction_set=instruction_set, num_blocks=5
    )
    for count in (1, 5, ROWS):
        error = np.abs(rig.all_rows(count) - expected[:count]).max()
        assert error <= TOLERANCE.get(form, 3e-2) * np.abs(expected).max()


def test_attention_over_a_latent_cache(instruction_set: str) -> None:
    """Queries turn in part; a prompt and then a row, over blocks in any order. The cache has half precision."""
    random = np.random.default_rng(2)
    rows = random.standard_normal((ROWS, LATENT), dtype=np.float32)
    shapes = {"query": (HEADS * LATENT, LATENT), "rest": (HEADS * REST, LATENT), "key": (REST, LATENT)}
    matrices = {
        name: random.standard_normal(shape, dtype=np.float32) * np.float32(0.16) for name, shape in shapes.items()
    }
    scale = 0.01

    def record(graph: FusedBuilder, x: int) -> int:
        graph.caches.clear()
        cache = graph.cache(1, LATENT + REST, latent=True)
        graph.latent_write(x, graph.rope(graph.linear(x, "key"), ROPE), cache)
        rest = graph.rope(graph.linear(x, "rest"), ROPE)
        return graph.latent_attention(graph.linear(x, "query"), rest, cache, HEADS, scale, LATENT)

    weights = [dense(name, matrix) for name, matrix in matrices.items()]
    rig = Rig(rows, record, *weights, instruction_set=instruction_set, num_blocks=8)
    table = shuffled(8)
    first = rig.run([(range(ROWS - 1), 0, table)])
    last = rig.run([([ROWS - 1], ROWS - 1, table)])
    x = torch.from_numpy(rows)
    made = {name: x @ torch.from_numpy(matrix).T for name, matrix in matrices.items()}
    constants = torch.tensor(ROPE.frequencies), torch.tensor(ROPE.amplitudes)
    rest, key = (rotate(made[name].view(ROWS, -1, REST), torch.arange(ROWS), *constants) for name in ("rest", "key"))
    attention = Attention(0, HEADS, 1, LATENT + REST, scale, value_width=LATENT)
    cached = torch.cat((x, key.flatten(1)), dim=1)
    expected = attend_latent(made["query"].view(ROWS, HEADS, LATENT), rest, cached, 0, attention).flatten(1)
    np.testing.assert_allclose(np.concatenate((first, last)), expected.numpy(), rtol=0, atol=4e-3)

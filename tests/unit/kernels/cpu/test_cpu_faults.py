"""Numbers that are not finite: found in all that a step caches or gives, for their own sequence, and cleared."""

import numpy as np
import pytest
from tests.support.cpu_graphs import Floats, FusedBuilder, Params, Rig, available_sets, dense, needs_library

pytestmark = [needs_library, pytest.mark.parametrize("instruction_set", available_sets())]

LARGEST, OVERFLOWING = 65519.0, 65520.0  # the first is rounded down to the largest float16, the second up to infinity
NAN, INF = float("nan"), float("inf")
PARAMS = [Params(2, 1, 16), Params(3, 3, 20), Params(1, 1, 6)]


def attend(graph: FusedBuilder, qkv: int) -> int:
    return graph.select_rows(graph.attention(graph.rope_cache(qkv, 0), 0))


def project(graph: FusedBuilder, x: int) -> int:
    """The same behind linears that change nothing, which rotate and cache as they compute."""
    return attend(graph, graph.linear(x, "q", "k", "v"))


def ordinary(params: Params) -> Floats:
    width = (params.num_heads + 2 * params.num_kv_heads) * params.head_dim
    return np.random.default_rng(0).standard_normal((9, width), dtype=np.float32)


def column(params: Params, part: str) -> int:
    """The last column of the last head's query, key or value."""
    heads = {"q": params.num_heads, "k": params.num_heads + params.num_kv_heads}
    return heads.get(part, params.num_heads + 2 * params.num_kv_heads) * params.head_dim - 1


def faults(rows: Floats, params: Params, instruction_set: str, keep_hidden: bool, fused: bool) -> list[int]:
    """Of three sequences at position 0: row 8; rows 0 to 3, the first of which is looked at; rows 4 and 5.

    No query sees what stands in row 3, and only the first and the last sequence draw.
    """
    width, dim = rows.shape[1], params.head_dim
    names, ends = ("q", "k", "v"), np.cumsum([0, params.num_heads, params.num_kv_heads, params.num_kv_heads]) * dim
    identity = np.eye(width, dtype=np.float32)
    weights = [dense(name, identity[a:b]) for name, a, b in zip(names, ends, ends[1:], strict=False)]
    rig = Rig(
        rows,
        project if fused else attend,
        *(weights if fused else ()),
        instruction_set=instruction_set,
        params=params,
        keep_hidden=keep_hidden,
    )
    rig.run([([8], 0, [3]), (range(4), 0, [1]), ([4, 5], 0, [0])], selected=[0, 6])
    found: list[int] = rig.faults.tolist()
    return found


# A linear would spread what is not finite over all columns.
CASES = [("k", NAN, False), ("v", NAN, False), ("v", -INF, False), ("v", OVERFLOWING, False), ("v", -OVERFLOWING, True)]


@pytest.mark.parametrize("keep_hidden", [False, True])
@pytest.mark.parametrize("params", PARAMS)
@pytest.mark.parametrize(("part", "value", "fused"), CASES)
def test_a_chunk_that_draws_nothing(
    instruction_set: str, part: str, value: float, fused: bool, params: Params, keep_hidden: bool
) -> None:
    rows = ordinary(params)
    rows[3, column(params, part)] = value
    assert faults(rows, params, instruction_set, keep_hidden, fused) == [0, 1, 0]


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("params", PARAMS)
def test_the_largest_half_is_no_fault(instruction_set: str, params: Params, fused: bool) -> None:
    rows = ordinary(params)
    rows[3, column(params, "v")], rows[8, column(params, "k")] = LARGEST, -LARGEST
    assert faults(rows, params, instruction_set, False, fused) == [0, 0, 0]


@pytest.mark.parametrize("keep_hidden", [False, True])
def test_logits_of_drawn_rows(instruction_set: str, keep_hidden: bool) -> None:
    """A query that is not finite is not cached: it shows where its row is drawn."""
    params = PARAMS[0]
    rows = ordinary(params)
    rows[2, column(params, "q")] = rows[5, column(params, "q")] = NAN
    assert faults(rows, params, instruction_set, keep_hidden, False) == [0, 0, 1]


def test_faults_are_of_one_step(instruction_set: str) -> None:
    rows = ordinary(PARAMS[0])
    rows[3] = NAN
    rig = Rig(rows, attend, instruction_set=instruction_set, params=PARAMS[0])
    for ids, fault in (([3], 1), ([2], 0), ([3, 3], 1)):
        rig.run([(ids, 0, [2])], selected=[0])
        assert rig.faults.tolist() == [fault]


@pytest.mark.parametrize("block_size", [5, 16])
def test_cleared_blocks_are_zero_before_anything_is_computed(instruction_set: str, block_size: int) -> None:
    """Those of all caches; the step that has one cleared may write it at once."""
    params = Params(2, 1, 16, num_layers=2)
    rows = ordinary(params)
    rows[8] = NAN

    def record(graph: FusedBuilder, qkv: int) -> int:
        graph.attention(graph.rope_cache(qkv, 1), 1)
        return attend(graph, qkv)

    rig = Rig(rows, record, instruction_set=instruction_set, params=params, block_size=block_size)
    rig.run([([8] * block_size, 0, [block]) for block in range(3)], selected=[0])
    rig.run([([1, 2], 0, [2])], selected=[0], cleared=[0, 2])
    for cache in (np.moveaxis(np.stack(rig.engine.keys()), 4, 2), np.moveaxis(np.stack(rig.engine.values()), 3, 2)):
        assert not cache[:, [0, 3]].any()
        assert np.isnan(cache[:, 1]).all()
        assert cache[:, 2, :2].all()
        assert not cache[:, 2, 2:].any()
    assert rig.faults.tolist() == [0]

"""Adapters of the CPU library against float64, on every instruction set, for weights of both kinds and any rank."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.support.adapter_codes import decoded
from tests.support.cpu_graphs import (
    FusedBuilder,
    Rig,
    available_sets,
    needs_library,
    random_weight,
    run_step,
)

from polyfleet.kernels.adapters import LowRank
from polyfleet.kernels.cpu.adapters import adapter_bits, pack_rows
from polyfleet.kernels.weights.weight import WeightFormat

pytestmark = [needs_library, pytest.mark.parametrize("instruction_set", available_sets())]

COLUMNS, ROWS = 96, (40, 20)  # neither fills its last group
Doubles = NDArray[np.float64]
SITES = ("layers.0.a", "layers.0.b")


def part(rank: int, rows: int, seed: int) -> LowRank:
    rng = np.random.default_rng(seed)
    down, up = rng.standard_normal((rank, COLUMNS)), rng.standard_normal((rows, rank))
    return LowRank(*(torch.from_numpy(each.astype(np.float32)) for each in (down / COLUMNS**0.5, up / rank**0.5)))


def added(each: LowRank, form: WeightFormat, x: Doubles) -> Doubles:
    """By the numbers as the library has them."""
    bits = adapter_bits(form)
    up, down = (decoded(pack_rows(matrix, bits), matrix.shape, bits) for matrix in (each.up, each.down))
    result: Doubles = x @ (up @ down).T
    return result


@pytest.mark.parametrize("form", [WeightFormat.Q4_1, WeightFormat.Q8_0, WeightFormat.F16])
@pytest.mark.parametrize("rank", [1, 16, 33, 70])
def test_each_row_has_what_its_own_adapter_adds(form: WeightFormat, rank: int, instruction_set: str) -> None:
    x = np.random.default_rng(rank).standard_normal((7, COLUMNS)).astype(np.float32)
    weights = [random_weight(name, form, rows, COLUMNS, rows) for name, rows in zip(SITES, ROWS, strict=True)]
    rig = Rig(x, record, *weights, instruction_set=instruction_set, adapters=True)
    rig.engine.set_adapter(0, both := {name: part(rank, rows, rows) for name, rows in zip(SITES, ROWS, strict=True)})
    rig.engine.set_adapter(3, one := {SITES[1]: part(2, ROWS[1], 9)})
    slices = [(range(3), 0, [0]), ([3, 4], 0, [1]), ([5, 6], 0, [2])]
    run_step(rig.engine, slices, keep_hidden=True)
    plain = rig.engine.logits(7).copy()
    run_step(rig.engine, slices, keep_hidden=True, adapters=[0, -1, 3])
    found, rows = rig.engine.logits(7) - plain, x.astype(np.float64)
    delta = np.zeros((7, sum(ROWS)))
    delta[:3] = np.concatenate([added(both[name], form, rows[:3]) for name in SITES], axis=1)
    delta[5:, ROWS[0] :] = added(one[SITES[1]], form, rows[5:])
    tolerance = 0.01 if form.quantised else 1e-3  # rows are rounded to 8 bits
    assert np.abs(found - delta).max() < tolerance * np.abs(delta).max()
    assert not found[3:5].any()
    run_step(rig.engine, slices[1:], keep_hidden=True, adapters=[0, 0])
    alone = rig.engine.logits(4).copy()
    run_step(rig.engine, slices, keep_hidden=True, adapters=[3, 0, 0])
    assert np.array_equal(rig.engine.logits(7)[3:], alone)  # to the bit in any company


def test_a_row_that_is_not_finite_stays_so(instruction_set: str) -> None:
    x = np.ones((2, COLUMNS), np.float32)
    x[1, 5] = np.inf
    weights = [random_weight(name, WeightFormat.Q8_0, rows, COLUMNS) for name, rows in zip(SITES, ROWS, strict=True)]
    rig = Rig(x, record, *weights, instruction_set=instruction_set, adapters=True)
    rig.engine.set_adapter(0, {SITES[0]: part(4, ROWS[0], 1)})
    run_step(rig.engine, [([0], 0, [0]), ([1], 0, [1])], keep_hidden=True, adapters=[0, 0])
    found = rig.engine.logits(2)
    assert np.isfinite(found[0]).all()
    assert not np.isfinite(found[1, : ROWS[0]]).any()


def record(graph: FusedBuilder, x: int) -> int:
    return graph.linear(x, *SITES)

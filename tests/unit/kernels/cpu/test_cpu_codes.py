"""Attention of the CPU library over keys and values in int8: against float64 over numbers that are rounded alike, to
the bit whatever is in the step, and where numbers are not finite."""

import random
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.support.cpu_graphs import Floats, FusedBuilder, Params, Rig, available_sets, dense, needs_library, shuffled
from tests.unit.kernels.cpu import test_cpu_faults
from tests.unit.kernels.cpu.test_cpu_attention import SHAPES, make_rows, record, turned

from polyfleet.kernels.int8_rows import numbers_of, rows_of

pytestmark = [needs_library, pytest.mark.parametrize("instruction_set", available_sets())]

EXACT = 1e-3  # a code or a scale that is rounded otherwise, for an angle's cosine has another last bit
NEARLY_ALL = 2e-6  # the mean: what float32 differs by from float64
WHOLE = 0.05  # what int8 itself costs, of numbers of ordinary size


def rig_of(params: Params, rows: Floats, instruction_set: str, **sizes: Any) -> Rig:
    return Rig(rows, record, instruction_set=instruction_set, params=params, codes=True, **sizes)


def in_float64(
    params: Params,
    rows: Floats,
    *,
    codes: bool = True,
    window: int = 0,
    cap: float = 0.0,
    sinks: Floats | None = None,
) -> NDArray[np.float64]:
    """Attention of all positions of one sequence, over keys and values that are rounded as codes are, or not."""
    q, k, v = (each.double() for each in turned(params, rows))
    if codes:
        k, v = (torch.from_numpy(numbers_of(rows_of(each.float().numpy()))).double() for each in (k, v))
    scores = torch.einsum("tkgd,kld->kgtl", q.reshape(len(q), len(k), -1, q.shape[-1]), k) * params.attention_scale
    scores = cap * torch.tanh(scores / cap) if cap else scores
    at = torch.arange(len(q))
    hidden = (at > at[:, None]) | (at <= at[:, None] - (window or len(q)))
    masses = scores.masked_fill(hidden, float("-inf")).exp()
    sunk = 0.0 if sinks is None else torch.from_numpy(sinks).double().exp().view(len(k), -1, 1, 1)
    found: NDArray[np.float64] = (
        torch.einsum("kgtl,kld->tkgd", masses / (masses.sum(-1, keepdim=True) + sunk), v).flatten(1).numpy()
    )
    return found


def assert_near(found: Floats, expected: NDArray[np.float64]) -> None:
    errors = np.abs(found - expected)
    assert errors.max() < EXACT
    assert errors.mean() < NEARLY_ALL


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("block_size", [1, 5, 16, 100])
def test_a_prompt_and_its_continuation(instruction_set: str, shape: tuple[int, int, int], block_size: int) -> None:
    params = Params(*shape)
    rows, num_blocks = make_rows(params, 100), -(-100 // block_size)
    rig, table = (
        rig_of(params, rows, instruction_set, block_size=block_size, num_blocks=num_blocks),
        shuffled(num_blocks),
    )
    found, start = [], 0
    for size in (1, 2, 37, 8, 1, 30, 20, 1):  # chunks of every kind, decodes among them
        found.append(rig.run([(range(start, start + size), start, table)]))
        start += size
    assert_near(np.concatenate(found), in_float64(params, rows))
    assert np.abs(np.concatenate(found) - in_float64(params, rows, codes=False)).max() < WHOLE


@pytest.mark.parametrize("attributes", [(9, 0.0, False), (0, 1.5, False), (0, 0.0, True), (70, 2.0, True)])
def test_windows_caps_and_sinks(instruction_set: str, attributes: tuple[int, float, bool]) -> None:
    """Over so many positions that threads share them."""
    params, count = Params(6, 2, 32), 300
    (window, cap, sunk), rows = attributes, make_rows(params, count)
    sinks = np.linspace(-1, 3, 6, dtype=np.float32)

    def with_attributes(graph: FusedBuilder, qkv: int) -> int:
        query, scale, name = graph.rope_cache(qkv, 0), params.attention_scale, "sinks" if sunk else ""
        return graph.paged_attention(query, 0, 6, scale, window=window, soft_cap=cap, sinks=name)

    taken = rows, with_attributes, dense("sinks", sinks)
    rig = Rig(*taken, instruction_set=instruction_set, params=params, codes=True, num_blocks=20)
    table = shuffled(20)
    found = [rig.run([(range(count - 1), 0, table)]), rig.run([([count - 1], count - 1, table)])]
    expected = in_float64(params, rows, window=window, cap=cap, sinks=sinks if sunk else None)
    assert_near(np.concatenate(found), expected)


def test_a_row_is_the_same_in_any_company(instruction_set: str) -> None:
    """To the bit: in a prompt, alone or among others, with any number of threads and blocks of any size."""
    params, length = Params(9, 3, 20), 700
    rows = make_rows(params, length) * np.random.default_rng(1).uniform(0.1, 3, (length, 1)).astype(np.float32)
    wanted = rig_of(params, rows, instruction_set, num_blocks=44, threads=1).run([(range(length), 0, range(44))])
    draw = random.Random(2)
    for threads, block_size in ((2, 5), (3, 100), (5, 16)):
        num_blocks = -(-length // block_size)
        rig = rig_of(params, rows, instruction_set, num_blocks=num_blocks, threads=threads, block_size=block_size)
        table, start = shuffled(num_blocks), 0
        for size in (1, 200, 64, 255, 180):
            part = range(start, start + size)
            np.testing.assert_array_equal(rig.run([(part, start, table)]), wanted[start : start + size])
            start += size
        for _ in range(12):
            places = draw.sample(range(length), 9)
            company = rig.run([*(([place], place, table) for place in places), (range(30, 60), 30, table)])
            np.testing.assert_array_equal(company, wanted[[*places, *range(30, 60)]])
            np.testing.assert_array_equal(rig.run([([places[0]], places[0], table)]), wanted[places[:1]])


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("part", ["k", "v"])
def test_what_is_not_finite_is_found_and_cleared(instruction_set: str, part: str, value: float) -> None:
    """Large numbers are none: a scale has float32's range."""
    params = Params(2, 1, 20)
    rows = make_rows(params, 9)
    rows[3, -21 if part == "k" else -1], rows[5, -1], rows[5, -21] = value, 1e30, -1e30
    rig = Rig(rows, test_cpu_faults.attend, instruction_set=instruction_set, params=params, codes=True)
    rig.run([(range(4), 0, [1]), ([4, 5], 0, [0]), ([6], 0, [2])], selected=[0, 4, 6])
    assert rig.faults.tolist() == [1, 0, 0]
    scales = [each[0] for each in rig.engine.scales()]
    assert [bool((side >= 0x7F80).any()) for side in scales] == [part == "k", part == "v"]
    rig.run([([7], 0, [3])], selected=[0], cleared=[1])
    assert not any(side[1].any() for side in (*scales, rig.engine.keys()[0], rig.engine.values()[0]))
    assert scales[0][0].any()


def test_what_a_block_held_before_is_not_seen(instruction_set: str) -> None:
    params = Params(2, 1, 16)
    rows = make_rows(params, 20)
    rows[19] = np.nan
    rig = rig_of(params, rows, instruction_set)
    assert not np.isfinite(rig.run([([19] * 16, 0, [2])])).all()
    expected = in_float64(params, rows[:19])
    found = [rig.run([(range(start, start + 1), start, [2, 0])]) for start in range(18)]
    assert_near(np.concatenate(found), expected[:18])

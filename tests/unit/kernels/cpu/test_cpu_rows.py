"""Embedding, norms, gate and their fusions in the CPU library, against float64."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.support.cpu_graphs import (
    Floats,
    FusedBuilder,
    Params,
    Rig,
    available_sets,
    dense,
    expand,
    needs_library,
    random_weight,
)

from polyfleet.kernels.cpu.layouts import FORMATS
from polyfleet.kernels.weights.weight import WeightFormat

pytestmark = [needs_library, pytest.mark.parametrize("instruction_set", available_sets())]

EPS = 1e-5


def random_rows(count: int, columns: int, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).standard_normal((count, columns), dtype=np.float32)


def norm(x: NDArray[np.float64], weight: Floats) -> NDArray[np.float64]:
    scaled: NDArray[np.float64] = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + EPS) * weight
    return scaled


def silu_mul(x: NDArray[np.float64]) -> NDArray[np.float64]:
    gate, up = np.split(x, 2, axis=-1)
    gated: NDArray[np.float64] = gate / (1 + np.exp(-gate)) * up
    return gated


@pytest.mark.parametrize("form", [*FORMATS, WeightFormat.Q5_0])
def test_embedding_in_every_format(instruction_set: str, form: WeightFormat) -> None:
    table = random_weight("table", form, 10, 512)
    rig = Rig(
        np.zeros((10, 1), dtype=np.float32),
        lambda graph, _: graph.embedding("table"),
        table,
        instruction_set=instruction_set,
        threads=1,
    )
    ids = [7, 0, 9, 7]
    np.testing.assert_allclose(rig.run([(ids, 0, [0])]), expand(table)[ids], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("columns", [1, 7, 64, 579])
def test_rms_norm(instruction_set: str, columns: int) -> None:
    rows, weight = random_rows(3, columns), random_rows(1, columns, seed=1)[0]
    rig = Rig(rows, lambda graph, x: graph.norm(x, "n"), dense("n", weight), instruction_set=instruction_set)
    np.testing.assert_allclose(rig.all_rows(3), norm(rows.astype(np.float64), weight), rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("read_sum", [False, True])
@pytest.mark.parametrize("form", [WeightFormat.F32, WeightFormat.F16])
@pytest.mark.parametrize("count", [1, 2, 3, 70])
def test_add_rms_norm_before_a_linear(instruction_set: str, read_sum: bool, form: WeightFormat, count: int) -> None:
    """The sum is the second linear's residual; the norm is fused into the first."""
    rows, weight = random_rows(count, 40), random_rows(1, 40, seed=1)[0]
    first, second = random_weight("a", form, 40, 40, seed=2), random_weight("b", form, 24, 40, seed=3)

    def record(graph: FusedBuilder, x: int) -> int:
        normed, total = graph.add_rms_norm(x, x, "n")
        normed, _ = graph.add_rms_norm(graph.linear(normed, "a"), total if read_sum else x, "n")
        return graph.linear(normed, "b")

    rig = Rig(rows, record, dense("n", weight), first, second, instruction_set=instruction_set, num_blocks=5)
    wide = rows.astype(np.float64)
    inner = norm(2 * wide, weight) @ expand(first).T + (2 * wide if read_sum else wide)
    np.testing.assert_allclose(rig.all_rows(count), norm(inner, weight) @ expand(second).T, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("width", [2, 30, 64, 150])
def test_silu_mul_alone(instruction_set: str, width: int) -> None:
    rows = random_rows(4, width) * np.float32(8)
    result = Rig(rows, lambda graph, x: graph.silu_mul(x), instruction_set=instruction_set).all_rows(4)
    np.testing.assert_allclose(result, silu_mul(rows.astype(np.float64)), rtol=1e-5, atol=1e-6)


def test_silu_mul_of_large_numbers(instruction_set: str) -> None:
    gate = np.array([-1e4, -200, -90, -20, 0, 20, 90, 200, 1e4, np.nan], dtype=np.float32)
    rows = np.concatenate([gate, np.full(10, 2, dtype=np.float32)])[None]
    result = Rig(rows, lambda graph, x: graph.silu_mul(x), instruction_set=instruction_set).all_rows(1)[0]
    np.testing.assert_allclose(result[:9], [0, 0, 0, -40 * np.exp(-20), 0, 40, 180, 400, 2e4], rtol=1e-5, atol=1e-30)
    assert np.isnan(result[9])


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("inner", [16, 40, 96])
@pytest.mark.parametrize("count", [1, 5, 80])
def test_gated_linears(instruction_set: str, biased: bool, inner: int, count: int) -> None:
    rows = random_rows(count, 32)
    weights = [random_weight(name, WeightFormat.F32, inner, 32, seed) for seed, name in enumerate(("gate", "up"))]
    biases = [dense(f"{w.name}.bias", random_rows(1, inner, seed=9)[0]) for w in weights]
    names = tuple(bias.name for bias in biases) if biased else ()

    def record(graph: FusedBuilder, x: int) -> int:
        return graph.silu_mul(graph.linear(x, "gate", "up", biases=names))

    rig = Rig(rows, record, *weights, *biases, instruction_set=instruction_set, num_blocks=5)
    parts = [rows.astype(np.float64) @ expand(w).T + biased * expand(b) for w, b in zip(weights, biases, strict=True)]
    np.testing.assert_allclose(rig.all_rows(count), silu_mul(np.concatenate(parts, 1)), rtol=1e-4, atol=1e-5)


def test_selected_rows(instruction_set: str) -> None:
    rows = random_rows(9, 20)
    rig = Rig(rows, lambda graph, x: graph.select_rows(x), instruction_set=instruction_set)
    result = rig.run([(range(9), 0, [0])], selected=[0, 4, 8])
    np.testing.assert_array_equal(result, rows[[0, 4, 8]])


def test_greedy_takes_the_lowest_of_equal_ids(instruction_set: str) -> None:
    rows = np.zeros((6, 37), dtype=np.float32)
    rows[0, [36, 20]] = 2
    rows[1, [0, 36]] = 2
    rows[2] = -3
    rows[3, 36] = np.inf
    rows[4, 7] = np.nan
    rows[5, 11] = -np.inf
    for threads in (1, 2, 5):
        rig = Rig(rows, lambda graph, x: x, instruction_set=instruction_set, threads=threads)
        for count in (6, 1):
            rig.run([([row], 0, [0]) for row in range(count)], selected=range(count))
            assert rig.greedy_ids.tolist() == [20, 0, 0, 0, 0, 0][:count]
            assert rig.faults.tolist() == [0, 0, 0, 1, 1, 1][:count]


def test_greedy_with_more_threads_than_logits(instruction_set: str) -> None:
    rows = np.array([[1, 3], [2, -1]], dtype=np.float32)
    rig = Rig(rows, lambda graph, x: x, instruction_set=instruction_set, threads=5)
    rig.run([(range(2), 0, [0])], selected=[0, 1])
    assert rig.greedy_ids.tolist() == [1, 0]


def test_half_precision_round_trip(instruction_set: str) -> None:
    """Values go through the cache: with one position, attention gives them back as float16 rounds them."""
    numbers = np.array([1.0, -1.0009765, 65504, 6.1e-5, 5.9e-8, 2e-8, -3.14159, 0], dtype=np.float32)
    rows = np.concatenate([np.zeros(16, dtype=np.float32), numbers])[None]
    params = Params(1, 1, 8)

    def record(graph: FusedBuilder, qkv: int) -> int:
        return graph.attention(graph.rope_cache(qkv, 0), 0)

    result = Rig(rows, record, instruction_set=instruction_set, params=params).all_rows(1)[0]
    np.testing.assert_array_equal(result, torch.from_numpy(numbers).half().float().numpy())

"""Linears of the CPU library against float64, in every format and on every instruction set of this machine."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.support.cpu_graphs import (
    Floats,
    FusedBuilder,
    Record,
    Rig,
    available_sets,
    dense,
    expand,
    needs_library,
    random_weight,
)

from polyfleet.kernels.cpu.layouts import FORMATS, format_read, readable
from polyfleet.kernels.weights.quantisation import dequantise
from polyfleet.kernels.weights.weight import Weight, WeightFormat

pytestmark = [needs_library, pytest.mark.parametrize("instruction_set", available_sets())]

READ = [form for form in WeightFormat if form in FORMATS]
QUANTISED = [form for form in READ if form.quantised]
DENSE = [form for form in WeightFormat if not form.quantised]
ROW_COUNTS = (1, 2, 3, 4, 5, 7, 8, 16, 17, 33, 64)

ROUNDED = (WeightFormat.Q6_K, WeightFormat.INT8, WeightFormat.FP8)
COMPANY_FORMS = [form for form in READ if form not in (WeightFormat.INT4, WeightFormat.INT8, WeightFormat.FP8)]

# Error of a result, in units of sum(|x| |w|): float32 sums and scales; Q4_K's products of scales are kept in half
# precision, and what 8 bits with one scale for 32 columns don't hold is rounded to them.
EXACT = {WeightFormat.Q4_K: 6e-4, WeightFormat.INT4: 6e-4} | dict.fromkeys(ROUNDED, 8e-3)
ONE_SCALE = {
    *(WeightFormat.Q5_0, WeightFormat.Q8_K, WeightFormat.TQ1_0, WeightFormat.TQ2_0, WeightFormat.IQ1_S),
    *(WeightFormat.IQ2_XXS, WeightFormat.IQ3_XXS, WeightFormat.IQ3_S, WeightFormat.IQ4_NL, WeightFormat.IQ4_XS),
    WeightFormat.MXFP4,
}
MANY_ROWS = 300
COMPANIES = (*range(1, 36), 47, 48, 49, 63, 64, 65, 79, 100, *range(126, 131), 191, 193, 255, 256, 257, MANY_ROWS)
BF16_SETS = ("avx512bf16", "amx")


def exact_rows(count: int, columns: int, seed: int = 1) -> Floats:
    """Rows that int8 codes with one scale per 32 columns represent exactly."""
    rng = np.random.default_rng(seed)
    codes = rng.integers(-127, 128, (count, columns // 32, 32))
    codes[..., 5] = np.where(rng.random(codes.shape[:2]) < 0.5, 127, -127)
    scales = 2.0 ** rng.integers(-9, -5, codes.shape[:2])
    return (codes * scales[..., None]).reshape(count, columns).astype(np.float32)


def linear(*weights: str, biases: tuple[str, ...] = ()) -> Record:
    def record(graph: FusedBuilder, x: int) -> int:
        return graph.linear(x, *weights, biases=biases)

    return record


def check(result: Floats, rows: Floats, weight: Weight, tolerance: float) -> None:
    matrix = expand(weight)
    expected = rows.astype(np.float64) @ matrix.T
    size: NDArray[np.float64] = np.abs(rows).astype(np.float64) @ np.abs(matrix).T
    assert np.all(np.abs(result - expected) <= tolerance * size + 1e-12)


@pytest.mark.parametrize("form", QUANTISED)
@pytest.mark.parametrize(("outputs", "columns"), [(16, 256), (40, 512), (7, 768)])
def test_quantised_weights_and_rows_that_int8_represents(
    instruction_set: str, form: WeightFormat, outputs: int, columns: int
) -> None:
    weight = random_weight("w", form, outputs, columns)
    rows = exact_rows(max(ROW_COUNTS), columns)
    rig = Rig(rows, linear("w"), weight, instruction_set=instruction_set, num_blocks=8)
    for count in ROW_COUNTS:
        check(rig.all_rows(count), rows[:count], weight, EXACT.get(form, 2e-6))


def test_formats_that_are_not_read_as_they_are(instruction_set: str) -> None:
    """One scale for 32 columns: the same numbers; else rounded to 127 steps of the block's largest."""
    rows, steps = exact_rows(3, 256), 0.5 / 127 + 1e-6
    for form in [form for form in WeightFormat if form not in FORMATS]:
        weight = random_weight("w", form, 7, 256)
        made, numbers = expand(readable(weight)), _numbers(weight)
        peaks = np.abs(numbers).reshape(7, -1, 32).max(-1).repeat(32, axis=1)
        assert readable(weight).format is format_read(form)
        same = form in ONE_SCALE
        assert np.all(np.abs(made - numbers) <= peaks * (1e-7 if same else steps)), form
        result = Rig(rows, linear("w"), weight, instruction_set=instruction_set).all_rows(3)
        check(result, rows, readable(weight), 6e-4)


def _numbers(weight: Weight) -> NDArray[np.float64]:
    return dequantise(weight, torch.float32).double().numpy()  # which other tests compare with `gguf`


@pytest.mark.parametrize("form", [WeightFormat.Q8_0, WeightFormat.Q4_0, WeightFormat.Q4_1])
@pytest.mark.parametrize("columns", [32, 96, 576])
def test_odd_numbers_of_blocks(instruction_set: str, form: WeightFormat, columns: int) -> None:
    weight = random_weight("w", form, 33, columns)
    rows = exact_rows(5, columns)
    result = Rig(rows, linear("w"), weight, instruction_set=instruction_set).all_rows(5)
    check(result, rows, weight, 2e-6)


@pytest.mark.parametrize(("form", "columns"), [(form, 256) for form in COMPANY_FORMS] + [(WeightFormat.Q4_1, 1600)])
def test_a_row_computes_to_the_same_bits_in_any_company(instruction_set: str, form: WeightFormat, columns: int) -> None:
    """So that a sequence goes on with the same tokens when it was moved or preempted."""
    weight = random_weight("w", form, 40, columns)
    rows = np.random.default_rng(6).standard_normal((MANY_ROWS, columns), dtype=np.float32)
    rigs = [
        Rig(rows, linear("w"), weight, instruction_set=instruction_set, num_blocks=19, threads=threads)
        for threads in (1, 2, 3)
    ]
    together = rigs[0].all_rows(MANY_ROWS)
    for count in COMPANIES:
        for rig in rigs:
            np.testing.assert_array_equal(rig.all_rows(count), together[:count])


@pytest.mark.parametrize("form", [WeightFormat.Q4_1, WeightFormat.F32])
def test_a_wide_slice_changes_no_other_row(instruction_set: str, form: WeightFormat) -> None:
    """Rows of short slices stand before, between and behind those of long ones."""
    weight = random_weight("w", form, 40, 96)
    rows = np.random.default_rng(8).standard_normal((MANY_ROWS, 96), dtype=np.float32)
    rig = Rig(rows, linear("w"), weight, instruction_set=instruction_set, num_blocks=19, wide=True)
    narrow = Rig(rows, linear("w"), weight, instruction_set=instruction_set, num_blocks=19).all_rows(MANY_ROWS)
    cuts = (0, 1, 70, 71, 80, 240, 245, MANY_ROWS - 1, MANY_ROWS)  # the fifth slice has 160 rows
    blocks = [
        list(range(2 * at, 2 * at + 2)) if last - first < 33 else list(range(19))
        for at, (first, last) in enumerate(pairwise(cuts))
    ]
    result = rig.run(
        [(range(first, last), 0, table) for (first, last), table in zip(pairwise(cuts), blocks, strict=True)]
    )
    long = np.zeros(MANY_ROWS, dtype=bool)
    long[80:240] = True
    np.testing.assert_array_equal(result[~long], narrow[~long])


@pytest.mark.parametrize("form", QUANTISED)
def test_ordinary_rows_lose_no_more_than_int8_does(instruction_set: str, form: WeightFormat) -> None:
    weight = random_weight("w", form, 48, 512)
    rows = np.random.default_rng(2).standard_normal((9, 512), dtype=np.float32)
    result = Rig(rows, linear("w"), weight, instruction_set=instruction_set).all_rows(9)
    expected = rows.astype(np.float64) @ expand(weight).T
    assert np.linalg.norm(result - expected) < 0.01 * np.linalg.norm(expected)


@pytest.mark.parametrize("form", QUANTISED)
@pytest.mark.parametrize("columns", [256, 1792])
def test_wide_slices_lose_no_more_than_bfloat16_does(instruction_set: str, form: WeightFormat, columns: int) -> None:
    weight = random_weight("w", form, 40, columns)
    rows = np.random.default_rng(7).standard_normal((300, columns), dtype=np.float32)
    rig = Rig(rows, linear("w"), weight, instruction_set=instruction_set, num_blocks=32, wide=True)
    expected = rows.astype(np.float64) @ expand(weight).T
    for count in (128, 141, 300):
        result = rig.all_rows(count)
        assert np.linalg.norm(result - expected[:count]) < 0.01 * np.linalg.norm(expected[:count])


@pytest.mark.parametrize("form", DENSE)
@pytest.mark.parametrize(("outputs", "columns"), [(16, 64), (40, 33), (5, 1), (1, 17), (130, 129)])
def test_dense_weights(instruction_set: str, form: WeightFormat, outputs: int, columns: int) -> None:
    weight = random_weight("w", form, max(outputs, 2), columns)
    rows = np.random.default_rng(3).standard_normal((max(ROW_COUNTS), columns), dtype=np.float32)
    rig = Rig(rows, linear("w"), weight, instruction_set=instruction_set, num_blocks=8)
    rounded = form is WeightFormat.BF16 and instruction_set in BF16_SETS  # rows are rounded to bfloat16 too
    for count in ROW_COUNTS:
        check(rig.all_rows(count), rows[:count], weight, 5e-3 if rounded else 2e-6)


@pytest.mark.parametrize("biased", [False, True])
def test_several_weights_side_by_side(instruction_set: str, biased: bool) -> None:
    """Formats may differ, also of two that are computed together; the second's 18 rows leave the third off the grid."""
    rows = exact_rows(70, 64)
    rng = np.random.default_rng(4)
    weights = [
        random_weight("a", WeightFormat.Q4_0, 16, 64, seed=1),
        random_weight("b", WeightFormat.F32, 18, 64, seed=3),
        random_weight("c", WeightFormat.Q8_0, 23, 64, seed=2),
    ]
    biases = [dense(f"{w.name}.bias", rng.standard_normal(w.rows, dtype=np.float32)) for w in weights]
    biases = biases if biased else []
    record = linear(*(weight.name for weight in weights), biases=tuple(bias.name for bias in biases))
    rig = Rig(rows, record, *weights, *biases, instruction_set=instruction_set, num_blocks=5, threads=1)
    for count in (1, 3, 40, 70):
        result = rig.all_rows(count)
        expected = np.concatenate([rows[:count].astype(np.float64) @ expand(weight).T for weight in weights], axis=1)
        expected += np.concatenate([expand(bias).ravel() for bias in biases]) if biased else 0
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("form", [WeightFormat.Q4_1, WeightFormat.Q8_0])
def test_weights_of_very_different_size_side_by_side(instruction_set: str, form: WeightFormat) -> None:
    """Each has a power of two of its own that brings its scales into half precision, whatever is computed with it."""
    small, large = (random_weight(name, form, 16, 1600, seed=seed) for seed, name in enumerate(("small", "large")))
    halves = 4 if form is WeightFormat.Q4_1 else 2  # bytes of a block's scale, and of its minimum
    blocks = small.data.numpy().reshape(16, 50, -1).copy()
    scales = blocks[..., :halves].copy().view(np.float16) / 64
    blocks[..., :halves] = scales.astype(np.float16).view(np.uint8)
    small = replace(small, data=torch.from_numpy(blocks.reshape(16, -1)))
    rows = exact_rows(70, 1600)
    record = linear("small", "large")
    rig = Rig(rows, record, small, large, instruction_set=instruction_set, num_blocks=5, threads=1)
    for count in (1, 20, 70):
        result = rig.all_rows(count)
        check(result[:, :16], rows[:count], small, 2e-6)
        check(result[:, 16:], rows[:count], large, 2e-6)


def test_blocks_of_very_different_size(instruction_set: str) -> None:
    """Scales are kept in half precision around the weight's largest: a block 2^18 times smaller still counts."""
    weight = random_weight("w", WeightFormat.Q8_0, 16, 64)
    blocks = weight.data.reshape(16, 2, 34)
    blocks[:, 0, :2] = torch.from_numpy(np.full((16, 1), 2.0**-22, dtype=np.float16).view(np.uint8))
    rows = exact_rows(2, 64)
    rows[:, 32:] = 0
    result = Rig(rows, linear("w"), weight, instruction_set=instruction_set).all_rows(2)
    check(result, rows, weight, 2e-6)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_any_number_of_threads_gives_the_same_numbers(instruction_set: str, threads: int) -> None:
    weight = random_weight("w", WeightFormat.Q4_1, 100, 96)
    rows = np.random.default_rng(5).standard_normal((130, 96), dtype=np.float32)
    one = Rig(rows, linear("w"), weight, instruction_set=instruction_set, threads=1, num_blocks=9)
    many = Rig(rows, linear("w"), weight, instruction_set=instruction_set, threads=threads, num_blocks=9)
    for count in (1, 2, 15, 130):
        np.testing.assert_array_equal(one.all_rows(count), many.all_rows(count))


@pytest.mark.parametrize("columns", [64, 192])  # blocks are made codes one by one, and four together
def test_rows_of_zeros_and_rows_that_are_not_finite(instruction_set: str, columns: int) -> None:
    rows = np.ones((5, columns), dtype=np.float32)
    rows[0], rows[1, columns - 24], rows[2, 3], rows[3] = 0, np.nan, np.inf, 1e-38
    weight = random_weight("w", WeightFormat.Q4_1, 32, columns)
    result = Rig(rows, linear("w"), weight, instruction_set=instruction_set).all_rows(5)
    assert np.all(result[0] == 0)
    assert not np.isfinite(result[1:3]).any()
    assert np.all(np.abs(result[3]) < 1e-30)
    assert np.isfinite(result[4]).all()


@pytest.mark.parametrize("block", range(6))
def test_each_block_of_a_row_has_a_scale_of_its_own(instruction_set: str, block: int) -> None:
    """One block a million times larger than the others, or of zeros."""
    rows = exact_rows(3, 192)
    rows[1, 32 * block : 32 * block + 32] *= 2.0**20
    rows[2, 32 * block : 32 * block + 32] = 0
    weight = random_weight("w", WeightFormat.Q4_1, 16, 192)
    result = Rig(rows, linear("w"), weight, instruction_set=instruction_set).all_rows(3)
    check(result, rows, weight, 2e-6)

"""Parts of weights: the same numbers as of the whole, whatever they are stored as."""

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from gguf.quants import quantize

from polyfleet.graph.shard import Cut, NotSharded, StackCut
from polyfleet.kernels.weights.cutting import part_of
from polyfleet.kernels.weights.quantisation import dequantise
from polyfleet.kernels.weights.weight import Weight, WeightFormat

ROWS, COLUMNS, EXPERTS = 12, 128, 3


def weight(form: WeightFormat) -> Weight:
    numbers = np.random.default_rng(3).normal(size=(ROWS, COLUMNS)).astype(np.float32)
    data = torch.from_numpy(numbers)
    if form.quantised:
        data = torch.from_numpy(quantize(numbers, GGMLQuantizationType[form.value]))
    return Weight("w", form, ROWS, COLUMNS, data)


def dense(part: Weight) -> torch.Tensor:
    numbers = dequantise(part, torch.float32)
    assert numbers.shape == (part.rows, part.columns)
    return numbers


@pytest.mark.parametrize("form", [WeightFormat.F32, WeightFormat.Q8_0, WeightFormat.Q4_1])
@pytest.mark.parametrize("columns", [(0, 0), (32, 64), (48, 80)])
@pytest.mark.parametrize("rows", [(0, 0), (3, 6)])
def test_rows_and_columns(form: WeightFormat, columns: tuple[int, int], rows: tuple[int, int]) -> None:
    whole = weight(form)
    part = part_of(whole, Cut("w", rows, columns))
    wanted = dense(whole)[rows[0] : rows[1] or ROWS, columns[0] : columns[1] or COLUMNS]
    assert torch.equal(dense(part), wanted)
    assert (part.format is form) == (not form.quantised or columns[0] % 32 == 0), "blocks stay whole where they can"


@pytest.mark.parametrize("form", [WeightFormat.F32, WeightFormat.Q8_0])
@pytest.mark.parametrize("rank", [0, 1])
def test_shares_of_experts(form: WeightFormat, rank: int) -> None:
    whole = weight(form)
    by_rows = part_of(whole, StackCut("w", EXPERTS, rank, 2, by_rows=True))
    stack = dense(whole).view(EXPERTS, 4, COLUMNS)
    assert torch.equal(dense(by_rows), stack[:, 2 * rank : 2 * rank + 2].reshape(-1, COLUMNS))
    by_columns = part_of(whole, StackCut("w", EXPERTS, rank, 2, by_rows=False))
    assert torch.equal(dense(by_columns), dense(whole)[:, 64 * rank : 64 * rank + 64])


def test_a_vector_of_experts_is_cut_along_its_columns_and_counts_on_one_rank() -> None:
    vector = Weight("b", WeightFormat.F32, 1, 12, torch.arange(12.0)[None])
    assert part_of(vector, StackCut("b", EXPERTS, 1, 2, by_rows=True)).data.tolist() == [[2, 3, 6, 7, 10, 11]]
    zeros = part_of(vector, StackCut("b", EXPERTS, 1, 2, by_rows=True, zeros=True))
    assert zeros.data.tolist() == [[0.0] * 12]


def test_experts_that_leave_a_rest_are_refused() -> None:
    with pytest.raises(NotSharded, match="4 columns of each expert can't be shared evenly by 3 ranks"):
        part_of(weight(WeightFormat.F32), StackCut("w", EXPERTS, 0, 3, by_rows=True))

"""A rank's parts of weights: views where that is possible."""

import torch
from torch import Tensor

from polyfleet.graph.shard import Cut, NotSharded, StackCut
from polyfleet.kernels.weights.quantisation import BLOCKS, dequantise
from polyfleet.kernels.weights.weight import Weight, WeightFormat


def part_of(weight: Weight, cut: Cut | StackCut) -> Weight:
    """The part, under the cut's name. Raises NotSharded for experts that leave a rest.

    Quantised columns that don't begin and end with blocks are dequantised to float32.
    """
    if isinstance(cut, StackCut):
        return _share(weight, cut)
    rows, data = cut.rows if cut.rows[1] else (0, weight.rows), weight.data
    form, data, width = _columns(weight, data[rows[0] : rows[1]], cut.columns)
    return Weight(cut.name, form, len(data), width, data)


def _share(weight: Weight, cut: StackCut) -> Weight:
    vector = weight.rows == 1
    if cut.zeros:
        data = torch.zeros(weight.rows, weight.columns)
        return Weight(cut.name, WeightFormat.F32, weight.rows, weight.columns, data)
    each = weight.columns if not cut.by_rows else (weight.columns if vector else weight.rows) // cut.experts
    if each % cut.size:
        raise NotSharded(f"{each} columns of each expert can't be shared evenly by {cut.size} ranks")
    first, stop = each // cut.size * cut.rank, each // cut.size * (cut.rank + 1)
    if not cut.by_rows:
        form, data, width = _columns(weight, weight.data, (first, stop))
        return Weight(cut.name, form, weight.rows, width, data)
    stack = weight.data.view(cut.experts, each, -1)[:, first:stop]
    data = stack.reshape(1, -1) if vector else stack.reshape(-1, weight.data.shape[1])
    return Weight(cut.name, weight.format, len(data), data.shape[1] if vector else weight.columns, data)


def _columns(weight: Weight, data: Tensor, columns: tuple[int, int]) -> tuple[WeightFormat, Tensor, int]:
    """Format, data and number of some columns of these rows of a weight; all of them where the stop is 0."""
    form, (first, stop) = weight.format, columns
    if not stop:
        return form, data, weight.columns
    if not form.quantised:
        return form, data[:, first:stop], stop - first
    block = BLOCKS[form]
    if first % block.weights or stop % block.weights:
        whole = dequantise(Weight(weight.name, form, len(data), weight.columns, data), torch.float32)
        return WeightFormat.F32, whole[:, first:stop], stop - first
    begin, end = (column // block.weights * block.size for column in columns)
    return form, data[:, begin:end], stop - first

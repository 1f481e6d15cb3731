"""Which formats of weights the CPU library reads, and what the others become for it: 4 or 8 bits a weight."""

import torch

from polyfleet.kernels.weights.folder_blocks import BLOCK, MIDDLE, pack_integers
from polyfleet.kernels.weights.quantisation import groups_of
from polyfleet.kernels.weights.weight import Weight, WeightFormat

# PfFormat of abi.h, in its order.
FORMATS = {
    form: number
    for number, form in enumerate(
        (
            *(WeightFormat.F32, WeightFormat.F16, WeightFormat.BF16, WeightFormat.Q8_0, WeightFormat.Q4_0),
            *(WeightFormat.Q4_1, WeightFormat.Q4_K, WeightFormat.Q6_K),
            *(WeightFormat.INT4, WeightFormat.INT8, WeightFormat.FP8),
        )
    )
}
FOUR_BITS = frozenset({WeightFormat.Q4_0, WeightFormat.Q4_1, WeightFormat.Q4_K, WeightFormat.INT4})
TERNARY = frozenset({WeightFormat.TQ1_0, WeightFormat.TQ2_0})
ROWS_AT_ONCE = 1 << 22  # weights, which bounds the memory beside the result


def format_read(form: WeightFormat) -> WeightFormat:
    """The format itself or, where the library does not read it, the one that `readable` makes of it."""
    if form in FORMATS:
        return form
    return WeightFormat.INT4 if form in TERNARY else WeightFormat.INT8


def readable(weight: Weight) -> Weight:
    """The weight in a format that the library reads.

    Codes with one scale for 32 columns stay as they are. Those with minima, or with two scales, become the nearest of
    127 steps to the block's largest; of five bits and more these are at most a quarter of their own steps.
    """
    form = format_read(weight.format)
    if form is weight.format:
        return weight
    step = max(1, ROWS_AT_ONCE // weight.columns)
    parts = [_packed(weight, form, start, start + step).data for start in range(0, weight.rows, step)]
    return Weight(weight.name, form, weight.rows, weight.columns, torch.cat(parts) if len(parts) > 1 else parts[0])


def _packed(weight: Weight, form: WeightFormat, first: int, last: int) -> Weight:
    groups = groups_of(weight.format, weight.data[first:last])
    codes, scales = groups.codes, groups.scales
    if groups.minima is not None or codes.shape[2] < BLOCK:
        numbers = groups.numbers.view(len(codes), -1, BLOCK)
        scales = numbers.abs().amax(-1) / 127
        steps = numbers / scales.clamp_min(torch.finfo(torch.float32).tiny).unsqueeze(-1)
        codes = steps.round_().clamp_(-127, 127)
    return pack_integers(weight.name, form, codes.flatten(1).short() + MIDDLE[form], scales)

"""Dense matrices in 8 bits, in blocks as GGUF has them (Q8_0): 32 whole numbers to ±127, and their scale."""

from dataclasses import replace

import torch

from polyfleet.kernels.weights.weight import Weight, WeightFormat

BLOCK = 32


def in_eight_bits(weight: Weight) -> Weight:
    """The matrix [rows, columns] in Q8_0; itself where it is a vector, quantised, or its rows are no whole blocks."""
    if weight.rows == 1 or weight.format.quantised or weight.columns % BLOCK:
        return weight
    blocks = weight.data.float().view(weight.rows, -1, BLOCK)
    scales = blocks.abs().amax(-1, keepdim=True) / 127
    codes = torch.where(scales > 0, blocks / scales, 0).round().to(torch.int8)
    data = torch.cat((scales.half().view(torch.uint8), codes.view(torch.uint8)), dim=-1).flatten(1)
    return replace(weight, format=WeightFormat.Q8_0, data=data)

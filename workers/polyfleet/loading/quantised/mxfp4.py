"""MXFP4 of Hugging Face folders, whose bytes hold neighbours, in the blocks of GGUF files."""

import torch
from torch import Tensor

from polyfleet.kernels.weights.weight import Weight, WeightFormat

BLOCK = 32  # numbers


def of_folder(name: str, blocks: Tensor, scales: Tensor) -> Weight:
    """A weight of blocks [..., B, 16] and scales [..., B], which are exponents. Raises ValueError."""
    if blocks.shape[:-1] != scales.shape or blocks.shape[-1] != BLOCK // 2:
        raise ValueError(f"{tuple(scales.shape)} scales don't fit {tuple(blocks.shape)} blocks")
    exponents, pairs = scales.flatten(0, -2), blocks.flatten(0, -3)
    data = torch.empty(*exponents.shape, 1 + BLOCK // 2, dtype=torch.uint8)
    data[..., 0] = exponents
    first, second = pairs[..., : BLOCK // 4], pairs[..., BLOCK // 4 :]  # 16 numbers each
    data[..., 1::2] = first & 0x0F | (second & 0x0F) << 4
    data[..., 2::2] = first >> 4 | second & 0xF0
    return Weight(name, WeightFormat.MXFP4, len(exponents), exponents.shape[1] * BLOCK, data.flatten(1))

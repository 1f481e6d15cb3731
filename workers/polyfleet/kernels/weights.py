"""Weights as they lie in a model file: dense tensors or quantised blocks, dequantised only where a kernel asks."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, unique

import torch


@unique
class WeightFormat(str, Enum):
    """Storage of one weight; the quantised ones are GGML's block formats, 32 or 256 weights a block."""

    F32 = "F32"
    F16 = "F16"
    BF16 = "BF16"
    Q8_0 = "Q8_0"
    Q4_0 = "Q4_0"
    Q4_1 = "Q4_1"
    Q4_K = "Q4_K"
    Q6_K = "Q6_K"

    @property
    def quantised(self) -> bool:
        """Whether data are blocks of bytes rather than numbers."""
        return self.name.startswith("Q")


@dataclass(frozen=True, slots=True)
class Weight:
    """A matrix [rows, columns] (rows are outputs) or a vector [1, columns].

    `data` is [rows, columns] of the dense type, or uint8 [rows, bytes per row] of raw blocks.
    """

    name: str
    format: WeightFormat
    rows: int
    columns: int
    data: torch.Tensor


Weights = Mapping[str, Weight]

"""Weights as they lie in a model file: dense tensors or quantised blocks, dequantised only where a kernel asks."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from polyfleet.kernels.weights.formats import WeightFormat as WeightFormat

if TYPE_CHECKING:  # who only names weights needs no torch
    import torch


@dataclass(frozen=True, slots=True)
class Weight:
    """A matrix [rows, columns] (rows are outputs) or a vector [1, columns].

    `data` is [rows, columns] of the dense type, or uint8 [rows, bytes per row] of raw blocks.
    """

    name: str
    format: WeightFormat
    rows: int
    columns: int
    data: "torch.Tensor"


Weights = Mapping[str, Weight]

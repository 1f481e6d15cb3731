"""Weights and rows as kernels of products read them: see `linear`."""

from dataclasses import dataclass

import torch
from torch import Tensor

from polyfleet.kernels.triton.codes import INT4
from polyfleet.kernels.triton.pairs import pairs
from polyfleet.kernels.triton.tuning import Tuning
from polyfleet.kernels.weights.packed import Packed


@dataclass(frozen=True, slots=True)
class Matrix:
    """Weights as the kernel reads them, and where parts of their products meet."""

    kind: int
    codes: Tensor
    groups: Tensor | None
    group: int
    minima: bool
    span: int  # 0: any
    rows: int  # N
    columns: int  # K
    arrived: Tensor  # int32, all 0 between launches

    @classmethod
    def of(cls, weight: Tensor | Packed, device: torch.device) -> "Matrix":
        """Of a dense matrix, or of a packed one."""
        if isinstance(weight, Tensor):
            arrived = torch.zeros(len(weight), dtype=torch.int32, device=device)
            rows, columns = weight.shape
            return cls(0, weight, None, 1, False, 0, rows, columns, arrived)
        arrived = torch.zeros(weight.rows, dtype=torch.int32, device=device)
        groups = weight.group, weight.minima, weight.span
        return cls(int(weight.kind), weight.words, weight.groups, *groups, weight.rows, weight.columns, arrived)


@dataclass(frozen=True, slots=True)
class Met:
    """Weights and rows as a kernel reads them."""

    kind: int
    codes: Tensor
    x: Tensor
    units: Tensor | None = None  # of pairs, and
    totals: Tensor | None = None  # sums of theirs


def kind_of(matrix: Matrix, tuned: Tuning, x: Tensor) -> int:
    """Bytes where the matrix unit can meet those by pairs: bytes of a word are of one group."""
    if matrix.kind == 0 or not tuned.bytes or x.dtype is not torch.bfloat16 or matrix.group % (4 * matrix.span):
        return matrix.kind
    return 4 if matrix.kind == INT4 else 3


def met_by(matrix: Matrix, tuned: Tuning, x: Tensor, *, inside: bool) -> Met:
    """Of rows [rows, K]; `inside`: pairs are made where they are multiplied."""
    kind = kind_of(matrix, tuned, x)
    if kind < 3:
        return Met(kind, matrix.codes, x)
    codes = matrix.codes.view(torch.uint8 if kind == 4 else torch.float8_e4m3fn)
    made = (x,) if inside else pairs(x, matrix.span, sums=kind == 4, chained=tuned.chained)
    return Met(kind, codes, *made)

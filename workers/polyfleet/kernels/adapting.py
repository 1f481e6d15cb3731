"""What the adapters of a step's rows add, in torch."""

import numpy as np
import torch
from torch import Tensor

from polyfleet.graph.ops import Attributes, Op, OpKind
from polyfleet.kernels.context import KernelContext
from polyfleet.kernels.dispatch import Implementation, Kernel
from polyfleet.kernels.step import Step, upload


def rows_of_adapters(context: KernelContext, step: Step, attributes: Attributes | None) -> list[tuple[int, Tensor]]:
    """Each adapter of the step's rows, and which rows have it."""
    numbers = [number for number in np.unique(step.host_adapters).tolist() if number >= 0]
    return [(each, upload(np.flatnonzero(step.host_adapters == each), context.device)) for each in numbers]


def bind_adapt(op: Op, context: KernelContext) -> Kernel:
    """x, y -> y with what each row's adapter adds; rows of one adapter go together."""
    tables = context.adapters
    if tables is None:
        raise ValueError("a graph with adapters needs their tables")
    (down, up), rows, rank = tables.of(op), tables.rows(op), tables.rank

    def kernel(groups: list[tuple[int, Tensor]], x: Tensor, y: Tensor) -> Tensor:
        for number, mine in groups:
            narrow = x[mine] @ down[number].T
            parts = zip(torch.split(narrow, rank, dim=1), torch.split(up[number], rows), strict=True)
            y.index_add_(0, mine, torch.cat([low @ part.T for low, part in parts], dim=1))
        return y

    return kernel


ADAPTERS = (Implementation(OpKind.ADAPT, "reference", bind_adapt, rows_of_adapters),)

"""What the adapters of a step's rows add, in torch."""

import numpy as np
import torch
from torch import Tensor

from polyfleet.graph.ops import Attributes, Op, OpKind
from polyfleet.kernels.adapters import AdapterTables
from polyfleet.kernels.context import KernelContext
from polyfleet.kernels.dispatch import Implementation, Kernel
from polyfleet.kernels.step import Step, upload


def rows_of_adapters(context: KernelContext, step: Step, attributes: Attributes | None) -> list[tuple[int, Tensor]]:
    """Each adapter of the step's rows, and which rows have it."""
    numbers = [number for number in np.unique(step.host_adapters).tolist() if number >= 0]
    return [(each, upload(np.flatnonzero(step.host_adapters == each), context.device)) for each in numbers]


def bind_adapt(op: Op, context: KernelContext) -> Kernel:
    """x, y -> y with what each row's adapter adds; rows of one adapter go together."""
    tables = tables_of(context)
    (down, up), rows, rank = tables.of(op.weights), tables.rows(op.weights), tables.rank

    def kernel(groups: list[tuple[int, Tensor]], x: Tensor, y: Tensor) -> Tensor:
        for number, mine in groups:
            narrow = x[mine] @ down[number].T
            parts = zip(torch.split(narrow, rank, dim=1), torch.split(up[number], rows), strict=True)
            y.index_add_(0, mine, torch.cat([low @ part.T for low, part in parts], dim=1))
        return y

    return kernel


def bind_shrink(op: Op, context: KernelContext) -> Kernel:
    """x -> low [T, weights * rank] in float32, 0 in rows without an adapter."""
    down, _ = tables_of(context).of(op.weights)

    def kernel(step: Step, x: Tensor) -> Tensor:
        numbers = numbers_of(step)
        low = torch.einsum("trc,tc->tr", down[numbers.clamp(min=0)].float(), x.float())
        return low * (numbers >= 0)[:, None]

    return kernel


def bind_grow(names: tuple[str, ...], context: KernelContext) -> Kernel:
    """low -> what it adds to products with these weights, [T, Σ rows] in float32."""
    tables = tables_of(context)
    (_, up), rows = tables.of(names), tables.rows(names)

    def kernel(step: Step, low: Tensor) -> Tensor:
        mine = torch.split(up[numbers_of(step).clamp(min=0)].float(), rows, dim=1)
        parts = zip(mine, torch.split(low, tables.rank, dim=1), strict=True)
        return torch.cat([torch.einsum("tor,tr->to", each, part) for each, part in parts], dim=1)

    return kernel


def tables_of(context: KernelContext) -> AdapterTables:
    """Those of the context, which must be there."""
    if context.adapters is None:
        raise ValueError("a graph with adapters needs their tables")
    return context.adapters


def numbers_of(step: Step) -> Tensor:
    """The adapter of each row [T]; negative: none."""
    if step.adapters is None:
        raise ValueError("a step of a graph with adapters says which its rows have")
    return step.adapters.long()


ADAPTERS = (
    Implementation(OpKind.ADAPT, "reference", bind_adapt, rows_of_adapters),
    Implementation(OpKind.SHRINK, "reference", bind_shrink, capturable=True),
)

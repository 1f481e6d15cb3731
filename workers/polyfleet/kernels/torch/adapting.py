"""What the adapters of a step's rows add, in torch."""

from collections.abc import Callable
from functools import cache

import numpy as np
import torch
from torch import Tensor

from polyfleet.graph.ops import Attributes, Op, OpKind
from polyfleet.kernels.adapters import AdapterTables
from polyfleet.kernels.context import KernelContext
from polyfleet.kernels.dispatch import Implementation, Kernel
from polyfleet.kernels.step import Step, upload

Groups = Callable[[int], list[tuple[int, Tensor]]]  # of a value with so many rows


def rows_of_adapters(context: KernelContext, step: Step, attributes: Attributes | None) -> Groups:
    """Each adapter of a value's rows, and which rows have it; a value has all rows of the step, or the wanted ones."""

    @cache
    def groups(count: int) -> list[tuple[int, Tensor]]:
        every = step.host_adapters
        mine = every if count == len(every) else every[step.host_selected]
        numbers = [number for number in np.unique(mine).tolist() if number >= 0]
        return [(each, upload(np.flatnonzero(mine == each), context.device)) for each in numbers]

    return groups


def bind_adapt(op: Op, context: KernelContext) -> Kernel:
    """x, y -> y with what each row's adapter adds; rows of one adapter go together."""
    tables = tables_of(context)
    (down, up), rows, rank = tables.of(op.weights), tables.rows(op.weights), tables.rank

    def kernel(groups: Groups, x: Tensor, y: Tensor) -> Tensor:
        for number, mine in groups(len(x)):
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

"""The one table of implementations. Each declares its op and what it needs; dispatch picks once, when a model loads."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from polyfleet.graph.ops import Attributes, Op, OpKind
from polyfleet.kernels.context import KernelContext
from polyfleet.kernels.step import Step

# Called once a step and op of the graph: (plan, *inputs) -> output, or a tuple of outputs.
Kernel = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Target:
    """Where a model will run: torch's device type, the computing dtype, and facts of the device found."""

    device_type: str
    dtype: torch.dtype
    capabilities: frozenset[str] = frozenset()
    codes: bool = False  # whether caches hold rows of codes


def step_itself(context: KernelContext, step: Step, attributes: Attributes | None) -> Any:
    """The plan of implementations that need none."""
    return step


@dataclass(frozen=True, slots=True)
class Implementation:
    """One way to compute an op. None means "any"; `capabilities` must all be among the target's.

    `bind` makes the kernel of one op of the graph. `plan` computes, once a step,
    what kernels of equal attributes share over layers.
    """

    op: OpKind
    name: str
    bind: Callable[[Op, KernelContext], Kernel]
    plan: Callable[[KernelContext, Step, Any], Any] = step_itself
    device_types: frozenset[str] | None = None
    dtypes: frozenset[torch.dtype] | None = None
    capabilities: frozenset[str] = frozenset()
    capturable: bool = False  # launches depend on sizes alone, and rows whose place is negative leave no trace
    rank: int = 0  # the highest one that fits is taken
    codes: bool = True  # whether it knows caches of rows of codes, or no cache

    def fits(self, target: Target) -> bool:
        """Whether it can run there."""
        return (
            (self.device_types is None or target.device_type in self.device_types)
            and (self.dtypes is None or target.dtype in self.dtypes)
            and self.capabilities <= target.capabilities
            and (self.codes or not target.codes)
        )


def choose(table: Iterable[Implementation], target: Target) -> Mapping[OpKind, Implementation]:
    """The best implementation of each op for the target; of equal ranks the first in the table."""
    chosen: dict[OpKind, Implementation] = {}
    for each in table:
        if each.fits(target) and (each.op not in chosen or each.rank > chosen[each.op].rank):
            chosen[each.op] = each
    missing = [op.value for op in OpKind if op not in chosen]
    if missing:
        raise ValueError(f"no implementation of {', '.join(missing)} for {target.device_type} in {target.dtype}")
    return chosen

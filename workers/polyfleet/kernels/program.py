"""A KernelGraph bound to torch implementations: what executors run once a step."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from polyfleet.graph.kernel_graph import KernelGraph
from polyfleet.graph.ops import Op, OpKind, without_cache
from polyfleet.kernels.context import KernelContext
from polyfleet.kernels.dispatch import Implementation, Kernel
from polyfleet.kernels.step import Step


@dataclass(frozen=True, slots=True)
class _Instruction:
    """One op, bound. `plan` numbers what it shares with others; `dead` are values that no later one reads."""

    kernel: Kernel
    plan: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    dead: tuple[int, ...]


class Program:
    """Binding prepares the weights in `context`, where the next binding of the same graph finds them."""

    def __init__(
        self,
        graph: KernelGraph,
        chosen: Mapping[OpKind, Implementation],
        context: KernelContext,
        progress: Callable[[float], None],
    ) -> None:
        self._graph = graph
        self._chosen = chosen
        self._context = context
        self._plans: list[Op] = []  # the first op of each plan
        self._instructions = self._bind(progress)

    def run(self, step: Step, inputs: Sequence[Tensor] = ()) -> tuple[Tensor, ...]:
        """The graph's outputs, of a model hidden states [T, H] and logits [S, V]; `inputs` are the graph's."""
        plans = [self._chosen[op.kind].plan(self._context, step, op.attributes) for op in self._plans]
        values: list[Any] = [None] * len(self._graph.widths)
        values[0] = step.token_ids
        for value, tensor in zip(self._graph.inputs, inputs, strict=True):
            values[value] = tensor
        for each in self._instructions:
            result = each.kernel(plans[each.plan], *[values[value] for value in each.inputs])
            if len(each.outputs) == 1:
                values[each.outputs[0]] = result
            else:
                for value, tensor in zip(each.outputs, result, strict=True):
                    values[value] = tensor
            for value in each.dead:
                values[value] = None
        return tuple(values[value] for value in self._graph.outputs)

    def _bind(self, progress: Callable[[float], None]) -> tuple[_Instruction, ...]:
        graph = self._graph
        last_reader = {value: number for number, op in enumerate(graph.ops) for value in op.inputs}
        for value in graph.outputs:
            last_reader.pop(value, None)
        instructions = []
        for number, op in enumerate(graph.ops):
            kernel = self._chosen[op.kind].bind(op, self._context)
            dead = tuple(value for value in set(op.inputs) if last_reader.get(value) == number)
            instructions.append(_Instruction(kernel, self._plan_of(op), op.inputs, op.outputs, dead))
            progress((number + 1) / len(graph.ops))
        return tuple(instructions)

    def _plan_of(self, op: Op) -> int:
        """The plan that `op` shares with all of its kind whose attributes differ in nothing but the cache."""
        for number, first in enumerate(self._plans):
            if first.kind is op.kind and without_cache(first) == without_cache(op):
                return number
        self._plans.append(op)
        return len(self._plans) - 1

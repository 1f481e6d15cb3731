"""A KernelGraph bound to torch implementations: what executors run once a step."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from torch import Tensor

from polyfleet.graph.kernel_graph import KernelGraph
from polyfleet.graph.ops import (
    Attention,
    Attributes,
    CacheWrite,
    Convolution,
    Op,
    OpKind,
    RopeAttention,
    RopeCache,
    StateSpace,
)
from polyfleet.kernels.context import KernelContext
from polyfleet.kernels.dispatch import Implementation, Kernel
from polyfleet.kernels.step import Step


class _Instruction(NamedTuple):
    """One op, bound. `plan` numbers what it shares with others; operands are registers."""

    kernel: Kernel
    plan: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    dead: tuple[int, ...]  # read here for the last time, and taken by no output


class Program:
    """Binding prepares the weights in `context`, where the next binding of the same graph finds them.

    `spent` hears of each weight when the last op that names it is bound.
    """

    def __init__(
        self,
        graph: KernelGraph,
        chosen: Mapping[OpKind, Implementation],
        context: KernelContext,
        progress: Callable[[float], None],
        spent: Callable[[str], None] | None = None,
    ) -> None:
        self._graph = graph
        self._chosen = chosen
        self._context = context
        self._plans: list[Op] = []  # the first op of each plan
        self._instructions = self._bind(progress, spent or (lambda name: None))

    def run(self, step: Step, inputs: Sequence[Tensor] = ()) -> tuple[Tensor, ...]:
        """The graph's outputs, of a model hidden states [T, H] and logits [S, V]; `inputs` are the graph's."""
        local = step.local or step
        plans = [
            self._chosen[op.kind].plan(self._context, local if self._is_local(op) else step, op.attributes)
            for op in self._plans
        ]
        registers: list[Any] = [None] * self._num_registers
        registers[self._registers[0]] = step.token_ids
        for value, tensor in zip(self._graph.inputs, inputs, strict=True):
            registers[self._registers[value]] = tensor
        for kernel, plan, taken, outputs, dead in self._instructions:
            result = kernel(plans[plan], *[registers[each] for each in taken])
            if len(outputs) == 1:
                registers[outputs[0]] = result
            else:
                for register, tensor in zip(outputs, result, strict=True):
                    registers[register] = tensor
            for register in dead:
                registers[register] = None
        return tuple(registers[self._registers[value]] for value in self._graph.outputs)

    def _bind(self, progress: Callable[[float], None], spent: Callable[[str], None]) -> tuple[_Instruction, ...]:
        """The instructions. A value's register is free again behind its last reader, for that one's outputs first."""
        ops = self._graph.ops
        last_reader = {value: number for number, op in enumerate(ops) for value in op.inputs}
        last_bound = {name: number for number, op in enumerate(ops) for name in op.weights}
        for value in self._graph.outputs:
            last_reader.pop(value, None)
        self._registers = {value: number for number, value in enumerate(dict.fromkeys((0, *self._graph.inputs)))}
        self._num_registers, free = len(self._registers), list[int]()
        instructions = []
        for number, op in enumerate(ops):
            inputs = tuple(self._registers[value] for value in op.inputs)
            ended = [self._registers[value] for value in set(op.inputs) if last_reader.get(value) == number]
            free += ended
            for value in op.outputs:
                if not free:
                    free.append(self._num_registers)
                    self._num_registers += 1
                self._registers[value] = free.pop()
            outputs = tuple(self._registers[value] for value in op.outputs)
            dead = tuple(register for register in ended if register not in outputs)
            kernel = self._chosen[op.kind].bind(op, self._context)
            instructions.append(_Instruction(kernel, self._plan_of(op), inputs, outputs, dead))
            for name in op.weights:
                if last_bound[name] == number:
                    spent(name)
            progress((number + 1) / len(ops))
        return tuple(instructions)

    def _plan_of(self, op: Op) -> int:
        """The plan that `op` shares with all of its kind whose attributes differ in nothing but a pool's cache."""
        for number, first in enumerate(self._plans):
            alike = first.kind is op.kind and self._is_local(first) == self._is_local(op)
            if alike and _without_cache(first) == _without_cache(op):
                return number
        self._plans.append(op)
        return len(self._plans) - 1

    def _is_local(self, op: Op) -> bool:
        """Whether its cache is in the second pool."""
        return op.cache in self._context.local


def _without_cache(op: Op) -> Attributes | None:
    """The op's attributes, whichever cache or state they name."""
    if isinstance(op.attributes, Convolution | StateSpace):
        return replace(op.attributes, state=0)
    if isinstance(op.attributes, CacheWrite | Attention | RopeCache):
        return replace(op.attributes, cache=0)
    if isinstance(op.attributes, RopeAttention):
        return RopeAttention(replace(op.attributes.rope, cache=0), replace(op.attributes.attention, cache=0))
    return op.attributes

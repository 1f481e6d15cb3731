"""Low-rank adapters (Hu et al., arXiv 2106.09685): a linear's y becomes y + up @ (down @ x), of each row its own."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from polyfleet.graph.adapt import adaptable
from polyfleet.graph.kernel_graph import KernelGraph
from polyfleet.graph.ops import Op, OpKind
from polyfleet.kernels.weights.weight import Weights


@dataclass(frozen=True, slots=True)
class LowRank:
    """What an adapter adds to one weight [rows, columns]: up @ down, its scale in `up` already; float32."""

    down: Tensor  # [rank, columns]
    up: Tensor  # [rows, rank]


Parts: TypeAlias = Mapping[str, LowRank]  # of one adapter, by the weight's name


class AdapterTables:
    """All adapters' matrices of each `adapt` of a graph, where they stay for its life; 0 where there is nothing.

    Those of one op, whose n weights lie side by side: down [adapters, n * rank, columns], up [adapters, Σ rows, rank].
    """

    def __init__(
        self, graph: KernelGraph, weights: Weights, count: int, rank: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.count, self.rank = count, rank
        self._rows = {name: weights[name].rows for op in adapts(graph) for name in op.weights}
        self._tables: dict[tuple[str, ...], tuple[Tensor, Tensor]] = {}
        self._lines: dict[tuple[str, ...], range] = {}
        self.all_lines = 0
        for op in adapts(graph):
            rows, columns = sum(self._rows[name] for name in op.weights), weights[op.weights[0]].columns
            shapes = (count, len(op.weights) * rank, columns), (count, rows, rank)
            down, up = (torch.zeros(shape, dtype=dtype, device=device) for shape in shapes)
            self._tables[op.weights] = down, up
            self._lines[op.weights] = range(self.all_lines, self.all_lines + shapes[0][1])
            self.all_lines += shapes[0][1]

    def of(self, names: tuple[str, ...]) -> tuple[Tensor, Tensor]:
        """down and up of the weights of one op."""
        return self._tables[names]

    def lines(self, names: tuple[str, ...]) -> range:
        """Which of the lines of every op's `down`, one below another, are those of this one's."""
        return self._lines[names]

    def rows(self, names: tuple[str, ...]) -> list[int]:
        """Of each of these weights."""
        return [self._rows[name] for name in names]

    def has(self, names: tuple[str, ...]) -> bool:
        """Whether one op has these weights, and adapters."""
        return names in self._tables

    def set(self, number: int, parts: Parts) -> None:
        """Put an adapter's matrices in the place of those of that number, behind every step so far."""
        for names, (down, up) in self._tables.items():
            down[number].zero_()
            up[number].zero_()
            first = 0
            for at, name in enumerate(names):
                rows = self._rows[name]
                if part := parts.get(name):
                    rank = len(part.down)
                    down[number, at * self.rank : at * self.rank + rank] = part.down.to(down)
                    up[number, first : first + rows, :rank] = part.up.to(up)
                first += rows


def adapts(graph: KernelGraph) -> list[Op]:
    """The ops that adapters come in by."""
    return [op for op in graph.ops if op.kind is OpKind.ADAPT]


def table_numbers(graph: KernelGraph, weights: Weights, rank: int) -> int:
    """How many numbers one adapter of so high a rank has, at most."""
    return rank * sum(weights[name].rows + weights[name].columns for name in adaptable(graph))

"""Random kernel graphs for users, recorded on any number of sides alike."""

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyfleet.engine.graphs.kernel_graph import RunnableGraph, Value

WIDTHS = (16, 32, 48)
UNARY = ("silu", "relu", "gelu")
KINDS = ("linear", "biased", "rms_norm", "layer_norm", "add", "mul", "gated", *UNARY, "gelu_tanh")
Values = list[Value]  # one on each side

Inputs = dict[str, NDArray[Any]]


class RandomGraph:
    """Applies each op to all `sides`; `values` are the ones that later ops may read."""

    def __init__(self, seed: int, sides: Sequence[RunnableGraph]) -> None:
        self._rng, self._numbers = random.Random(seed), np.random.default_rng(seed)
        self._sides = sides
        self._tables = 40
        self.values: list[Values] = []
        self.argmaxes = 0
        for name, width in (("a", self._rng.choice(WIDTHS)), ("b", self._rng.choice(WIDTHS))):
            self.values.append([side.input(name, width) for side in sides])
        if self._rng.random() < 0.5:
            ids = [side.ids("ids") for side in sides]
            table = self._weight(self._tables, self._rng.choice(WIDTHS))
            self.values.append([side.embedding(each, table) for side, each in zip(sides, ids, strict=True)])
        for _ in range(self._rng.randrange(1, 12)):
            self._op(self._rng.choice(KINDS))
        self._mark_outputs()

    def inputs(self, rows: int) -> Inputs:
        """Random rows for every input."""
        found: Inputs = {}
        for name, value in self._sides[0].inputs.items():
            whole = value.kind.value == "ids"
            found[name] = (
                self._numbers.integers(0, self._tables, rows) if whole else self._weight(rows, value.width, scale=1.0)
            )
        return found

    def _mark_outputs(self) -> None:
        for number in range(self._rng.randrange(1, 4)):
            self._output(f"y{number}", self._rng.choice(self.values))
        self._output("last", self.values[-1])
        if self._rng.random() < 0.5:
            chosen = self._rng.choice(self.values)
            self._output("numbers", chosen)
            self._output("columns", self._on_each("argmax", chosen))

    def _output(self, name: str, values: Values) -> None:
        for side, value in zip(self._sides, values, strict=True):
            side.output(name, value)

    def _op(self, kind: str) -> None:
        x = self._rng.choice(self.values)
        width = x[0].width
        alike = self._rng.choice([each for each in self.values if each[0].width == width])
        if kind in ("linear", "biased"):
            outputs = self._rng.choice(WIDTHS)
            bias = self._weight(outputs) if kind == "biased" else None
            made = self._on_each("linear", x, self._weight(outputs, width), bias)
        elif kind == "rms_norm":
            made = self._on_each("rms_norm", x, self._weight(width), self._rng.choice((1e-6, 1e-3)))
        elif kind == "layer_norm":
            made = self._on_each("layer_norm", x, self._weight(width), self._weight(width))
        elif kind == "gated":
            gate, up = (self._on_each("linear", x, self._weight(32, width)) for _ in range(2))
            made = self._on_each("mul", self._on_each("silu", gate), up)
        elif kind in ("add", "mul"):
            made = self._on_each(kind, x, alike)
        elif kind == "gelu_tanh":
            made = self._on_each("gelu", x, "tanh")
        else:
            made = self._on_each(kind, x)
        self.values.append(made)

    def _on_each(self, name: str, *operands: Any) -> Values:
        made = []
        for index, side in enumerate(self._sides):
            own = (each[index] if isinstance(each, list) else each for each in operands)
            made.append(getattr(side, name)(*own))
        return made

    def _weight(self, *shape: int, scale: float = 0.0) -> NDArray[Any]:
        spread = scale or shape[-1] ** -0.5
        numbers: NDArray[Any] = self._numbers.standard_normal(shape).astype(np.float32) * np.float32(spread)
        return numbers

"""Kernel graphs for users: ops over named inputs, recorded one by one and run by any executor that has them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, unique
from types import TracebackType

import numpy as np
import torch

from polyfleet.backends.protocol import BackendType
from polyfleet.engine.graphs.arrays import Array, as_ids, as_rows, as_weight
from polyfleet.engine.graphs.program import GraphProgram, Site
from polyfleet.graph.kernel_graph import GraphBuilder
from polyfleet.graph.ops import OpKind
from polyfleet.kernels.weights.weight import Weight

GELU_FORMS = {"none": OpKind.GELU, "tanh": OpKind.GELU_TANH}


@unique
class ValueKind(str, Enum):
    """What a value's rows hold."""

    NUMBERS = "numbers"
    IDS = "ids"  # that embeddings look up
    COLUMNS = "columns"  # that argmax found


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """What an op of a RunnableGraph makes, or one of its inputs: a matrix of any number of rows."""

    graph: "RunnableGraph" = field(repr=False)
    number: int
    width: int  # columns
    kind: ValueKind = ValueKind.NUMBERS


def new_kernel_graph(
    backend: BackendType | str = "auto", *, executor: str = "auto", dtype: str = "float32"
) -> "RunnableGraph":
    """An empty graph for a device: a backend's name, with an index where it has several (`cuda:1`), or `auto`.

    `executor` names one of the device's; `auto` takes the first that has all ops. `dtype` is computed in where the
    executor has a choice. Raises BackendUnavailable, or ValueError for an executor or dtype that the device lacks.
    """
    return RunnableGraph(Site.open(backend, executor, dtype))


class RunnableGraph:
    """Record inputs, ops and outputs, then `run`: compiled when it first runs, fixed from then on. Not thread-safe.

        graph = new_kernel_graph()
        x = graph.input("x", 64)
        hidden = graph.relu(graph.linear(x, weight, bias))  # arrays of numpy or torch, [outputs, 64] and [outputs]
        graph.output("y", graph.add(hidden, hidden))
        y = graph.run({"x": rows})["y"]

    Every op works row by row. Ops raise ValueError, one sentence, for operands and weights that don't fit.
    """

    def __init__(self, site: Site) -> None:
        """`new_kernel_graph` is the usual way here."""
        self._site = site
        self._weights: dict[str, Weight] = {}
        self._rows: dict[str, int] = {}
        self._columns: dict[str, int] = {}
        self._builder = GraphBuilder(self._rows, self._columns)
        self._inputs: dict[str, Value] = {}
        self._outputs: dict[str, Value] = {}
        self._id_limit = 2**31
        self._program: GraphProgram | None = None
        self._closed = False

    @property
    def backend(self) -> str:
        """The accelerator's name."""
        return self._site.backend

    @property
    def inputs(self) -> Mapping[str, Value]:
        """By name."""
        return self._inputs

    @property
    def outputs(self) -> Mapping[str, Value]:
        """By name."""
        return self._outputs

    @property
    def executor(self) -> str:
        """The name of the executor; compiles."""
        return self._compiled().executor.name

    def implementations(self) -> Mapping[str, str]:
        """What runs each op; compiles."""
        return self._compiled().executor.implementations()

    def input(self, name: str, width: int) -> Value:
        """An input of numbers [rows, width]."""
        if type(width) is not int or not 0 < width < 2**31:
            raise ValueError(f"the width of input {name!r} must be a whole number over 0, not {width!r}")
        self._check_new("input", name, self._inputs)
        self._inputs[name] = Value(self, self._builder.input(width), width)
        return self._inputs[name]

    def ids(self, name: str) -> Value:
        """The input of whole numbers [rows] that embeddings look up; a graph has one at most."""
        self._check_new("input", name, self._inputs)
        if any(each.kind is ValueKind.IDS for each in self._inputs.values()):
            raise ValueError("a graph has one input of ids: all embeddings read it")
        self._inputs[name] = Value(self, self._builder.token_ids, 1, ValueKind.IDS)
        return self._inputs[name]

    def output(self, name: str, value: Value) -> None:
        """Have `run` give a value: numbers [rows, width], or of an argmax int64 [rows]."""
        self._check_new("output", name, self._outputs)
        self._outputs[name] = self._operand("output", value, ValueKind.NUMBERS, ValueKind.COLUMNS)

    def embedding(self, ids: Value, table: Array) -> Value:
        """Rows of `table` [n, width]; ids are 0 to n - 1."""
        self._operand("embedding", ids, ValueKind.IDS)
        name = self._weight("embedding's table", table, None, None)
        self._id_limit = min(self._id_limit, self._rows[name])
        return self._made(self._builder.embedding(name))

    def linear(self, x: Value, weight: Array, bias: Array | None = None) -> Value:
        """x @ weightᵀ + bias; `weight` is [outputs, width], `bias` [outputs]."""
        self._operand("linear", x)
        name = self._weight("linear's weight", weight, None, x.width)
        biases = () if bias is None else (self._vector("linear's bias", bias, self._rows[name]),)
        return self._made(self._builder.linear(x.number, name, biases=biases))

    def rms_norm(self, x: Value, weight: Array, eps: float = 1e-6) -> Value:
        """x / sqrt(mean(x²) + eps) * weight over each row; `weight` is [width]."""
        self._operand("rms_norm", x)
        name = self._vector("rms_norm's weight", weight, x.width)
        return self._made(self._builder.rms_norm(x.number, name, _eps("rms_norm", eps)))

    def layer_norm(self, x: Value, weight: Array, bias: Array, eps: float = 1e-5) -> Value:
        """(x - mean(x)) / sqrt(variance(x) + eps) * weight + bias over each row; both are [width]."""
        self._operand("layer_norm", x)
        scale = self._vector("layer_norm's weight", weight, x.width)
        shift = self._vector("layer_norm's bias", bias, x.width)
        return self._made(self._builder.layer_norm(x.number, scale, shift, _eps("layer_norm", eps)))

    def add(self, x: Value, y: Value) -> Value:
        """x + y, of equal widths."""
        self._pair("add", x, y)
        return self._made(self._builder.add(x.number, y.number))

    def mul(self, x: Value, y: Value) -> Value:
        """x * y element by element, of equal widths."""
        self._pair("mul", x, y)
        return self._made(self._builder.mul(x.number, y.number))

    def silu(self, x: Value) -> Value:
        """x * sigmoid(x)."""
        return self._unary(OpKind.SILU, x)

    def relu(self, x: Value) -> Value:
        """max(x, 0)."""
        return self._unary(OpKind.RELU, x)

    def gelu(self, x: Value, approximate: str = "none") -> Value:
        """x * Φ(x) by the error function, or for "tanh" its approximation; both as torch names them."""
        if approximate not in GELU_FORMS:
            raise ValueError(f"gelu's approximate must be {' or '.join(GELU_FORMS)}, not {approximate!r}")
        return self._unary(GELU_FORMS[approximate], x)

    def argmax(self, x: Value) -> Value:
        """The column of each row's largest number, the first of equal ones or the first NaN; for outputs alone."""
        self._operand("argmax", x)
        return self._made(self._builder.argmax(x.number), ValueKind.COLUMNS)

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """The outputs for any number of rows; inputs are arrays of numpy or tensors of torch, all of as many rows.

        Gives numpy's arrays; tensors, on the device of the first one, where any input is one. Numbers that are not
        finite come out as the device computes them. Raises ValueError for inputs that don't fit, MemoryError.
        """
        program = self._compiled()
        if unknown := [name for name in inputs if name not in self._inputs]:
            raise ValueError(f"there is no input {unknown[0]!r}: this graph has {_names(self._inputs)}")
        if missing := [name for name in self._inputs if name not in inputs]:
            raise ValueError(f"input {missing[0]!r} is missing")
        ids, numbers, counts = None, [], {}
        for name, value in self._inputs.items():
            if value.kind is ValueKind.IDS:
                ids = as_ids(name, inputs[name], self._id_limit)
                counts[name] = len(ids)
            else:
                numbers.append(as_rows(name, inputs[name], value.width))
                counts[name] = len(numbers[-1])
        if len(set(counts.values())) > 1:
            described = ", ".join(f"{name!r} has {count}" for name, count in counts.items())
            raise ValueError(f"all inputs must have as many rows: {described}")
        results = program.run(next(iter(counts.values())), ids, numbers)
        tensors = [each for each in inputs.values() if isinstance(each, torch.Tensor)]
        found: dict[str, Array] = {}
        for (name, value), rows in zip(self._outputs.items(), results, strict=True):
            shaped = rows[:, 0].astype(np.int64) if value.kind is ValueKind.COLUMNS else rows
            found[name] = torch.from_numpy(shaped).to(tensors[0].device) if tensors else shaped
        return found

    def close(self) -> None:
        """Free the device's memory at once; the graph is of no use afterwards."""
        self._closed = True
        if self._program is not None:
            self._program.close()
            self._program = None

    def __enter__(self) -> "RunnableGraph":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _compiled(self) -> GraphProgram:
        if self._closed:
            raise ValueError("this graph is closed")
        if self._program is None:
            if not self._inputs or not self._outputs:
                raise ValueError(f"this graph has no {'output' if self._inputs else 'input'} yet")
            graph = self._builder.freeze(tuple(each.number for each in self._outputs.values()))
            self._program = GraphProgram.compile(self._site, graph, self._weights)
        return self._program

    def _check_new(self, kind: str, name: str, names: Mapping[str, Value]) -> None:
        self._check_open()
        if not isinstance(name, str) or not name:
            raise ValueError(f"an {kind}'s name must be a text that is not empty, not {name!r}")
        if name in names:
            raise ValueError(f"there is an {kind} {name!r} already")

    def _check_open(self) -> None:
        if self._program is not None:
            raise ValueError("this graph was compiled when it first ran, and is fixed: make a new one")

    def _operand(self, op: str, value: Value, *kinds: ValueKind) -> Value:
        self._check_open()
        if not isinstance(value, Value) or value.graph is not self:
            raise ValueError(f"{op} needs a value of this graph, not {value!r}")
        if value.kind not in (kinds or (ValueKind.NUMBERS,)):
            raise ValueError(f"{op} needs {(kinds or (ValueKind.NUMBERS,))[0].value}, not {value.kind.value}")
        return value

    def _pair(self, op: str, x: Value, y: Value) -> None:
        if self._operand(op, x).width != self._operand(op, y).width:
            raise ValueError(f"{op} needs values of equal widths, not {x.width} and {y.width}")

    def _unary(self, kind: OpKind, x: Value) -> Value:
        self._operand(kind.value, x)
        return self._made(self._builder.unary(kind, x.number))

    def _made(self, number: int, kind: ValueKind = ValueKind.NUMBERS) -> Value:
        return Value(self, number, self._builder.widths[number], kind)

    def _vector(self, what: str, array: Array, width: int) -> str:
        return self._weight(what, array, 1, width)

    def _weight(self, what: str, array: Array, rows: int | None, columns: int | None) -> str:
        name = f"{len(self._weights)}: {what}"
        weight = self._weights[name] = as_weight(name, what, array, rows, columns)
        self._rows[name], self._columns[name] = weight.rows, weight.columns
        return name


def _eps(op: str, eps: float) -> float:
    if not isinstance(eps, int | float) or isinstance(eps, bool) or not 0 <= eps < float("inf"):
        raise ValueError(f"{op}'s eps must be a number of 0 or more, not {eps!r}")
    return float(eps)


def _names(values: Mapping[str, Value]) -> str:
    return ", ".join(map(repr, values))

"""Recording and running kernel graphs: what is given, what comes back, and what is refused in one sentence."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tests.support.numpy_executor import NumpyExecutor

from polyfleet.backends.protocol import BackendType, BackendUnavailable
from polyfleet.engine import new_kernel_graph
from polyfleet.engine.choosing.executors import NoExecutor
from polyfleet.engine.executor import Capacity
from polyfleet.engine.graphs.kernel_graph import RunnableGraph
from polyfleet.engine.graphs.program import GraphProgram
from polyfleet.executors.eager import EagerExecutor

ONES = np.ones((4, 3), dtype=np.float32)
NAN = np.array([[1, np.nan, 1]], dtype=np.float32)


def empty() -> RunnableGraph:
    return new_kernel_graph(BackendType.CPU, executor="eager")


def doubling() -> RunnableGraph:
    graph = empty()
    x = graph.input("x", 3)
    graph.output("y", graph.add(x, x))
    return graph


def test_numpy_in_numpy_out_and_torch_in_torch_out() -> None:
    graph = doubling()
    rows = np.arange(6, dtype=np.float64).reshape(2, 3)
    found = graph.run({"x": rows})["y"]
    assert isinstance(found, np.ndarray)
    assert found.tolist() == (2 * rows).tolist()
    tensor = torch.arange(6, dtype=torch.bfloat16, requires_grad=True).view(2, 3)
    given = graph.run({"x": tensor})["y"]
    assert isinstance(given, torch.Tensor)
    assert given.tolist() == (2 * rows).tolist()
    assert graph.run({"x": rows.T.copy().T})["y"].tolist() == (2 * rows).tolist()  # columns first in memory
    assert graph.run({"x": [[1.0, 2.0, 3.0]]})["y"].tolist() == [[2.0, 4.0, 6.0]]  # type: ignore[dict-item]


def test_results_are_the_callers_to_keep() -> None:
    graph = doubling()
    first = graph.run({"x": ONES})["y"]
    graph.run({"x": 5 * ONES})
    assert first.tolist() == (2 * ONES).tolist()


def test_ids_are_looked_up_and_argmax_gives_whole_numbers() -> None:
    graph = empty()
    ids = graph.ids("ids")
    table = np.eye(5, dtype=np.float16)
    looked_up = graph.embedding(ids, table)
    graph.output("row", looked_up)
    graph.output("column", graph.argmax(graph.add(looked_up, graph.input("bias", 5))))
    found = graph.run({"ids": np.array([4, 0, 2]), "bias": np.zeros((3, 5), dtype=np.float32)})
    assert found["row"].tolist() == np.eye(5)[[4, 0, 2]].tolist()
    assert found["column"].dtype == np.int64
    assert found["column"].tolist() == [4, 0, 2]


def test_weights_are_taken_as_they_are_when_given() -> None:
    graph = empty()
    weight = np.ones((2, 3), dtype=np.float32)
    graph.output("y", graph.linear(graph.input("x", 3), weight))
    weight[:] = 7
    assert graph.run({"x": ONES})["y"].tolist() == [[3.0, 3.0]] * 4


def test_a_graph_is_compiled_once_and_fixed_then(monkeypatch: pytest.MonkeyPatch) -> None:
    allocated: list[Capacity] = []
    monkeypatch.setattr(EagerExecutor, "allocate", _counting(EagerExecutor.allocate, allocated))
    graph = doubling()
    for rows in (1, 1000, 3):
        graph.run({"x": np.ones((rows, 3), dtype=np.float32)})
    assert len(allocated) == 1
    with pytest.raises(ValueError, match="fixed: make a new one"):
        graph.input("more", 3)


def _counting(allocate: Callable[..., None], seen: list[Capacity]) -> Callable[..., None]:
    def counted(self: EagerExecutor, capacity: Capacity) -> None:
        seen.append(capacity)
        allocate(self, capacity)

    return counted


def test_a_closed_graph_is_of_no_use() -> None:
    graph = doubling()
    with graph:
        graph.run({"x": ONES})
    with pytest.raises(ValueError, match="this graph is closed"):
        graph.run({"x": ONES})


def test_an_asynchronous_executor_gives_the_same() -> None:
    graph = doubling()
    graph.run({"x": ONES})
    program = graph._compiled()
    executor = program.executor
    assert isinstance(executor, EagerExecutor)
    ahead = GraphProgram(EagerExecutor(executor._workload, depth=2), program.graph, program.capacity)
    ahead.executor.allocate(program.capacity)
    assert ahead.run(4, None, [ONES])[0].tolist() == (2 * ONES).tolist()


def test_numbers_that_are_not_finite_come_out() -> None:
    found = doubling().run({"x": np.array([[np.inf, np.nan, 1]], dtype=np.float32)})["y"]
    assert found[0, 0] == np.inf
    assert np.isnan(found[0, 1])
    assert found[0, 2] == 2


@pytest.mark.parametrize(
    ("inputs", "sentence"),
    [
        ({}, "input 'x' is missing"),
        ({"x": ONES, "z": ONES}, "there is no input 'z': this graph has 'x'"),
        ({"x": ONES[:, :2]}, "input 'x' must be [rows, 3], not [4, 2]"),
        ({"x": ONES[0]}, "input 'x' must be [rows, 3], not [3]"),
        ({"x": np.ones((2, 3), dtype=np.int64)}, "input 'x' must be floating-point numbers, not int64"),
        ({"x": torch.ones((2, 3), dtype=torch.complex64)}, "input 'x' must be floating-point numbers, not complex64"),
        ({"x": [["a", "b", "c"]]}, "input 'x' must be an array of numbers, not list"),
    ],
)
def test_inputs_that_do_not_fit(inputs: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        doubling().run(inputs)
    assert str(caught.value) == sentence


def test_rows_and_ids_that_do_not_fit() -> None:
    graph = empty()
    ids = graph.ids("ids")
    graph.output("y", graph.add(graph.embedding(ids, ONES), graph.input("x", 3)))
    with pytest.raises(ValueError, match="all inputs must have as many rows: 'ids' has 2, 'x' has 4"):
        graph.run({"ids": np.array([0, 1]), "x": ONES})
    for wrong in (-1, 4):
        with pytest.raises(ValueError, match=f"ids of input 'ids' must be 0 to 3, not {wrong}"):
            graph.run({"ids": np.array([0, wrong, 1, 0]), "x": ONES})
    with pytest.raises(ValueError, match="must be whole numbers"):
        graph.run({"ids": np.array([0.5]), "x": ONES[:1]})


REFUSED: dict[str, tuple[Callable[[RunnableGraph], object], str]] = {
    "no width": (lambda g: g.input("x", 0), "the width of input 'x' must be a whole number over 0, not 0"),
    "a name twice": (lambda g: (g.input("x", 1), g.input("x", 1)), "there is an input 'x' already"),
    "no name": (lambda g: g.input("", 1), "an input's name must be a text that is not empty, not ''"),
    "ids twice": (lambda g: (g.ids("a"), g.ids("b")), "a graph has one input of ids: all embeddings read it"),
    "another's value": (lambda g: g.relu(empty().input("x", 3)), "relu needs a value of this graph"),
    "no value": (lambda g: g.relu(3), "relu needs a value of this graph, not 3"),  # type: ignore[arg-type]
    "ids as numbers": (lambda g: g.relu(g.ids("i")), "relu needs numbers, not ids"),
    "numbers as ids": (lambda g: g.embedding(g.input("x", 3), ONES), "embedding needs ids, not numbers"),
    "columns as numbers": (lambda g: g.silu(g.argmax(g.input("x", 3))), "silu needs numbers, not columns"),
    "ids as output": (lambda g: g.output("y", g.ids("i")), "output needs numbers, not ids"),
    "unequal widths": (
        lambda g: g.add(g.input("x", 3), g.input("y", 2)),
        "add needs values of equal widths, not 3 and 2",
    ),
    "wrong weight": (lambda g: g.linear(g.input("x", 2), ONES), "linear's weight must be [outputs, 2], not [4, 3]"),
    "a vector": (lambda g: g.linear(g.input("x", 3), ONES[0]), "linear's weight must be [outputs, 3], not [3]"),
    "wrong bias": (lambda g: g.linear(g.input("x", 3), ONES, ONES[0]), "linear's bias must be [4], not [3]"),
    "wrong scale": (lambda g: g.rms_norm(g.input("x", 2), ONES[0]), "rms_norm's weight must be [2], not [3]"),
    "wrong shift": (
        lambda g: g.layer_norm(g.input("x", 3), ONES[0], ONES),
        "layer_norm's bias must be [3], not [4, 3]",
    ),
    "no rows": (lambda g: g.embedding(g.ids("i"), ONES[:0]), "embedding's table must be [rows, columns], not [0, 3]"),
    "not finite": (
        lambda g: g.linear(g.input("x", 3), NAN),
        "linear's weight holds numbers that are not finite in float32",
    ),
    "not in float32": (
        lambda g: g.linear(g.input("x", 3), np.full((1, 3), 1e39)),
        "linear's weight holds numbers that are not finite in float32",
    ),
    "whole numbers": (
        lambda g: g.linear(g.input("x", 3), np.ones((2, 3), dtype=int)),
        "linear's weight must be floating-point numbers, not int64",
    ),
    "eps": (
        lambda g: g.rms_norm(g.input("x", 3), ONES[0], -1.0),
        "rms_norm's eps must be a number of 0 or more, not -1.0",
    ),
    "a form": (lambda g: g.gelu(g.input("x", 3), "erf"), "gelu's approximate must be none or tanh, not 'erf'"),
    "no output": (lambda g: (g.input("x", 3), g.run({"x": ONES})), "this graph has no output yet"),
    "no input": (lambda g: g.run({}), "this graph has no input yet"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_a_graph_refuses(what: str) -> None:
    act, sentence = REFUSED[what]
    with pytest.raises(ValueError, match=r".") as caught:
        act(empty())
    assert str(caught.value).startswith(sentence)
    assert "\n" not in str(caught.value)


def test_devices_and_executors_that_are_not_there() -> None:
    with pytest.raises(BackendUnavailable, match="there is no backend 'abacus'"):
        new_kernel_graph("abacus")
    with pytest.raises(ValueError, match="the vulkan executor can't run on cpu"):
        new_kernel_graph("cpu", executor="vulkan")
    with pytest.raises(ValueError, match="there is no executor 'slide-rule'"):
        new_kernel_graph("cpu", executor="slide-rule")
    with pytest.raises(ValueError, match="dtype: must be auto"):
        new_kernel_graph("cpu", dtype="float8")


def test_another_dtype_is_computed_in() -> None:
    graph = new_kernel_graph("cpu", dtype="bfloat16")
    graph.output("y", graph.input("x", 1))
    assert graph.run({"x": np.array([[1.003]])})["y"].tolist() == [[1.0]]
    assert graph.executor == "eager"


class Silent(NumpyExecutor):
    """Knows nothing of outputs."""

    name = "silent"

    def collect(self, pending: Any, timeout: float) -> Any:
        output = super().collect(pending, timeout)
        object.__setattr__(output, "outputs", ())
        return output


def test_an_executor_without_outputs_is_passed_over() -> None:
    graph = empty()
    graph._site.candidates.clear()
    graph._site.candidates["silent"] = f"{__name__}:Silent"
    x = graph.input("x", 3)
    graph.output("y", graph.relu(x))
    with pytest.raises(ValueError, match=r"the silent executor gives outputs of \[\] instead of \[\(1, 3\)\]"):
        graph.run({"x": ONES})
    graph._site.candidates["eager"] = "polyfleet.executors.eager:EagerExecutor"
    assert graph.run({"x": ONES})["y"].tolist() == ONES.tolist()
    assert graph.executor == "eager"


def test_a_graph_larger_than_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = doubling()
    object.__setattr__(graph._site.machine, "free_bytes", 1000)
    with pytest.raises(ValueError, match="GiB, more than cpu has free") as caught:
        graph.run({"x": ONES})
    assert not isinstance(caught.value, NoExecutor)

"""The same kernel graph on every executor that runs on a host, against numpy in float64."""

from collections.abc import Callable
from math import erf, pi
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.support.numpy_executor import NumpyExecutor
from tests.support.random_graphs import RandomGraph

from polyfleet.backends.registry import BackendRegistry
from polyfleet.engine.choosing.executors import KNOWN
from polyfleet.engine.graphs.kernel_graph import RunnableGraph, Value, new_kernel_graph
from polyfleet.engine.graphs.program import Site
from polyfleet.kernels.cpu import library

NUMPY = f"{NumpyExecutor.__module__}:{NumpyExecutor.__name__}"
EXECUTORS = ("eager", "persistent", "vulkan")
ONE_OP = 2e-6  # of the largest number: float32 and its sums
MANY_OPS = 1e-4
Floats = NDArray[np.float64]
RNG = np.random.default_rng(5)
X, Y = (RNG.standard_normal((9, 48)).astype(np.float32) * 3 for _ in range(2))
W, B = RNG.standard_normal((35, 48)).astype(np.float32), RNG.standard_normal(35).astype(np.float32)
SCALE, SHIFT = (RNG.standard_normal(48).astype(np.float32) for _ in range(2))


@pytest.fixture(params=EXECUTORS)
def executor(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    name: str = request.param
    if name == "vulkan":
        pytest.importorskip("wgpu", reason="the vulkan extra is not installed")
        monkeypatch.setenv("POLYFLEET_VULKAN_SOFTWARE", "1")
        if BackendRegistry.find("vulkan") is None:
            pytest.skip("no Vulkan device: apt install mesa-vulkan-drivers libvulkan1")
    if name == "persistent" and not library.PATH.exists():
        pytest.skip(f"{library.NAME} was not built")
    return name


def graph_on(executor: str) -> RunnableGraph:
    return new_kernel_graph("vulkan" if executor == "vulkan" else "cpu", executor=executor)


def numpy_graph() -> RunnableGraph:
    """A graph on the executor of these tests that computes in float64."""
    site = Site.open("cpu", "eager", "float32")
    site.candidates.clear()
    site.candidates["numpy"] = NUMPY
    return RunnableGraph(site)


def off(found: Any, right: Any) -> float:
    """The largest difference, as a share of the largest number."""
    reference = np.asarray(right, dtype=float)
    return float(np.abs(np.asarray(found) - reference).max() / max(1e-9, np.abs(reference).max()))


def normed(x: Floats, eps: float) -> Any:
    return x / np.sqrt((x * x).mean(axis=1, keepdims=True) + eps)


def centred(x: Floats) -> Any:
    return x - x.mean(axis=1, keepdims=True)


Record = Callable[[RunnableGraph, Value, Value], Value]
OPS: dict[str, tuple[Record, Callable[[Floats, Floats], Any]]] = {
    "linear": (lambda g, x, y: g.linear(x, W), lambda x, y: x @ W.T.astype(float)),
    "linear_biased": (lambda g, x, y: g.linear(x, W, B), lambda x, y: x @ W.T.astype(float) + B),
    "linear_to_one": (lambda g, x, y: g.linear(x, W[:1]), lambda x, y: x @ W[:1].T.astype(float)),
    "add": (lambda g, x, y: g.add(x, y), lambda x, y: x + y),
    "add_itself": (lambda g, x, y: g.add(x, x), lambda x, y: x + x),
    "mul": (lambda g, x, y: g.mul(x, y), lambda x, y: x * y),
    "silu": (lambda g, x, y: g.silu(x), lambda x, y: x / (1 + np.exp(-x))),
    "relu": (lambda g, x, y: g.relu(x), lambda x, y: np.maximum(x, 0)),
    "gelu": (lambda g, x, y: g.gelu(x), lambda x, y: x * (1 + np.vectorize(erf)(x / 2**0.5)) / 2),
    "gelu_tanh": (
        lambda g, x, y: g.gelu(x, "tanh"),
        lambda x, y: x * (1 + np.tanh((2 / pi) ** 0.5 * (x + 0.044715 * x**3))) / 2,
    ),
    "rms_norm": (lambda g, x, y: g.rms_norm(x, SCALE, 0.5), lambda x, y: normed(x, 0.5) * SCALE),
    "layer_norm": (
        lambda g, x, y: g.layer_norm(x, SCALE, SHIFT, 0.5),
        lambda x, y: normed(centred(x), 0.5) * SCALE + SHIFT,
    ),
    "argmax": (lambda g, x, y: g.argmax(x), lambda x, y: x.argmax(axis=1)),
    "input": (lambda g, x, y: x, lambda x, y: x),
}


def test_each_op_is_what_it_says(executor: str) -> None:
    with graph_on(executor) as graph:
        x, y = graph.input("x", 48), graph.input("y", 48)
        for name, (record, _) in OPS.items():
            graph.output(name, record(graph, x, y))
        found = graph.run({"x": X, "y": Y})
        assert graph.executor == executor
    for name, (_, expected) in OPS.items():
        right = expected(X.astype(float), Y.astype(float))
        assert found[name].shape == right.shape
        assert off(found[name], right) <= ONE_OP, name


def test_far_from_zero_and_far_out(executor: str) -> None:
    """Layer norm of numbers far from 0; activations where exp and tanh leave float32."""
    far = np.array([[-1e4, -200, -90, -20, 0, 20, 90, 1e4] * 2], dtype=np.float32)
    with graph_on(executor) as graph:
        x = graph.input("x", 16)
        for name, value in {
            "silu": graph.silu(x),
            "gelu": graph.gelu(x),
            "tanh": graph.gelu(x, "tanh"),
            "relu": graph.relu(x),
        }.items():
            graph.output(name, value)
        graph.output("normed", graph.layer_norm(x, np.ones(16, np.float32), np.zeros(16, np.float32)))
        found = graph.run({"x": far})
        shifted = graph.run({"x": np.arange(16, dtype=np.float32)[None] + 4096})["normed"]
    for name in ("silu", "gelu", "tanh", "relu"):
        assert found[name] == pytest.approx(np.maximum(far, 0), abs=1e-4), name
    spread = np.arange(16) - 7.5
    assert shifted[0] == pytest.approx(spread / np.sqrt((spread**2).mean() + 1e-5), abs=1e-4)


def test_argmax_takes_the_first_of_equal_ones_and_of_nan(executor: str) -> None:
    rows = np.zeros((5, 100), dtype=np.float32)
    rows[0, [70, 6]] = 3
    rows[1] = -1
    rows[1, 99] = -0.5
    rows[2, 80], rows[2, [40, 60]] = np.inf, np.nan
    rows[3] = -np.inf
    rows[4, :5] = -0.0
    with graph_on(executor) as graph:
        graph.output("at", graph.argmax(graph.input("x", 100)))
        found = graph.run({"x": rows})["at"]
    assert found.dtype == np.int64
    assert found.tolist() == rows.argmax(axis=1).tolist() == [6, 99, 40, 0, 0]


def test_a_sum_may_be_read_before_its_norm(executor: str) -> None:
    """Executors fuse the norm with the linear behind it; what reads the sum in between must find it made."""
    square = RNG.standard_normal((48, 48)).astype(np.float32)
    with graph_on(executor) as graph:
        x, y = graph.input("x", 48), graph.input("y", 48)
        total = graph.add(x, y)
        normed_total = graph.rms_norm(total, SCALE)
        doubled = graph.mul(total, y)
        graph.output("z", graph.add(doubled, graph.linear(normed_total, square)))
        found = graph.run({"x": X, "y": Y})["z"]
    x_, y_ = X.astype(float), Y.astype(float)
    right = (x_ + y_) * y_ + normed(x_ + y_, 1e-6) * SCALE @ square.T.astype(float)
    assert off(found, right) <= 1e-5


@pytest.mark.parametrize("seed", range(6))
def test_random_graphs(seed: int, executor: str) -> None:
    seed += len(executor)  # other ones on each
    with graph_on(executor) as graph, numpy_graph() as reference:
        made = RandomGraph(seed, (graph, reference))
        for rows in (3, 300):
            inputs = made.inputs(rows)
            right, found = reference.run(inputs), graph.run(inputs)
            assert found.keys() == right.keys()
            for name in right.keys() - {"columns"}:
                assert off(found[name], right[name]) <= MANY_OPS, (name, rows)
            if "columns" in right:
                numbers = np.asarray(right["numbers"])
                chosen = np.take_along_axis(numbers, np.asarray(found["columns"])[:, None], axis=1)[:, 0]
                assert off(chosen, numbers.max(axis=1)) <= 2 * MANY_OPS


def test_rows_are_free_per_run_and_a_row_alone_is_the_same(executor: str) -> None:
    with graph_on(executor) as graph:
        graph.output("y", graph.gelu(graph.linear(graph.input("x", 48), W, B)))
        rows = RNG.standard_normal((700, 48)).astype(np.float32)
        whole = graph.run({"x": rows})["y"]
        assert whole.shape == (700, 35)
        assert graph.run({"x": rows[:0]})["y"].shape == (0, 35)
        for count in (1, 5, 256, 257):
            assert graph.run({"x": rows[:count]})["y"] == pytest.approx(whole[:count], abs=1e-5)


@pytest.mark.parametrize("form", [torch.float16, torch.bfloat16, torch.float64])
def test_weights_of_other_types(form: torch.dtype, executor: str) -> None:
    """Half-precision weights are kept as they are, float64 ones are rounded to float32."""
    weight = torch.from_numpy(W).to(form)
    with graph_on(executor) as graph:
        graph.output("y", graph.linear(graph.input("x", 48), weight))
        found = graph.run({"x": torch.from_numpy(X)})["y"]
    right = X.astype(float) @ weight.double().numpy().T
    rounding = 2**-7 if form is torch.bfloat16 else 2e-6  # a CPU that multiplies bfloat16 rounds the rows to it, too
    assert isinstance(found, torch.Tensor)
    assert off(found, right) <= rounding


def test_auto_takes_the_devices_first_executor() -> None:
    with new_kernel_graph("cpu") as graph:
        graph.output("y", graph.relu(graph.input("x", 3)))
        assert graph.run({"x": np.array([[-1.0, 0.5, 2.0]])})["y"].tolist() == [[0.0, 0.5, 2.0]]
        assert graph.backend == "cpu"
        assert graph.executor in KNOWN
        assert graph.implementations().keys() == {"relu"}

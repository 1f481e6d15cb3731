"""Mixtures of experts in the CPU library against the implementations in torch, in every format and instruction set."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.support.cpu_graphs import (
    FusedBuilder,
    Record,
    Rig,
    available_sets,
    by_name,
    dense,
    needs_library,
    random_weight,
)
from tests.support.kernel_cases import make_context, make_step
from tests.unit.kernels.test_experts import ROUTES

from polyfleet.graph.kernel_graph import GraphBuilder
from polyfleet.graph.ops import Experts, Op, OpKind, Route
from polyfleet.kernels.cpu.model import unsupported
from polyfleet.kernels.torch.experts import bind_experts, route
from polyfleet.kernels.weights.quantisation import BLOCKS
from polyfleet.kernels.weights.weight import Weight, WeightFormat

pytestmark = [needs_library, pytest.mark.parametrize("instruction_set", available_sets())]

COUNT, INNER, OUTER = 5, 64, 96
ROWS = (1, 2, 3, 70, 200)
FORMS = [form for form in list(WeightFormat)[:8] if BLOCKS[form].weights <= 32]
ROUTE = Route(COUNT, 2)
# Of results of order 1: rows enter quantised weights as int8, and bfloat16 ones as bfloat16 where the set has it.
TOLERANCE = {WeightFormat.F32: 1e-5, WeightFormat.F16: 1e-5, WeightFormat.BF16: 2e-2}


@pytest.mark.parametrize("corrected", [False, True])
@pytest.mark.parametrize("name", ROUTES)
def test_routes(instruction_set: str, name: str, corrected: bool) -> None:
    attributes, random = ROUTES[name], np.random.default_rng(3)
    logits = random.standard_normal((20, attributes.experts), dtype=np.float32)
    correction = dense("correction", random.standard_normal(attributes.experts).astype(np.float32) * np.float32(0.3))

    def record(graph: FusedBuilder, x: int) -> int:
        return graph.route(x, attributes, "correction" if corrected else "")

    rig = Rig(logits, record, correction, instruction_set=instruction_set)
    expected = route(torch.from_numpy(logits), attributes, correction.data[0] if corrected else None)
    np.testing.assert_allclose(rig.all_rows(20), expected.numpy(), rtol=1e-4, atol=1e-6)


def mixture(experts: Experts, names: tuple[str, ...], biases: tuple[str, ...]) -> Record:
    def record(graph: FusedBuilder, x: int) -> int:
        return graph.experts(x, graph.route(graph.linear(x, "router"), ROUTE), names, experts, biases)

    return record


def stacks(form: WeightFormat) -> list[Weight]:
    shapes = {"gate": (INNER, OUTER), "up": (INNER, OUTER), "down": (OUTER, INNER)}
    found = [random_weight(name, form, COUNT * rows, columns, seed=rows) for name, (rows, columns) in shapes.items()]
    found.append(random_weight("router", WeightFormat.F32, COUNT, OUTER, seed=9))
    biases = (
        (f"{name}.b", np.random.default_rng(rows).standard_normal(COUNT * rows)) for name, (rows, _) in shapes.items()
    )
    return [*found, *(dense(name, numbers.astype(np.float32)) for name, numbers in biases)]


def in_torch(
    rows: NDArray[np.float32], weights: list[Weight], experts: Experts, names: tuple[str, ...], biases: tuple[str, ...]
) -> NDArray[np.float32]:
    held, x = by_name(*weights), torch.from_numpy(rows)
    context = replace(make_context(), weights=held)
    op = Op(OpKind.EXPERTS, (1, 2), (3,), names, biases, experts)
    shares = route(x @ held["router"].data.T, ROUTE)
    found: NDArray[np.float32] = bind_experts(op, context)(make_step([(1, 0)]), x, shares).numpy()
    return found


@pytest.mark.parametrize(
    ("form", "gated"), [*((form, True) for form in FORMS), (WeightFormat.F32, False), (WeightFormat.Q8_0, False)]
)
def test_experts_of_every_format(instruction_set: str, form: WeightFormat, gated: bool) -> None:
    """In steps of one row, of few, and of so many that an expert's rows are cut. Those of Q8_0 have biases,
    and those of F16 weigh what enters."""
    quantised, weights = form is WeightFormat.Q8_0, stacks(form)
    experts = Experts(COUNT, ROUTE.top_k, 2.0 if quantised and gated else 0.0, early=form is WeightFormat.F16)
    names = ("gate", "up", "down") if gated else ("up", "down")
    biases = tuple(f"{name}.b" for name in names) if quantised else ()
    rows = np.random.default_rng(1).standard_normal((max(ROWS), OUTER), dtype=np.float32)
    expected = in_torch(rows, weights, experts, names, biases)
    record = mixture(experts, names, biases)
    rig = Rig(rows, record, *weights, instruction_set=instruction_set, num_blocks=13, wide=True)
    alone = rig.all_rows(1)
    for count in ROWS:
        found = rig.all_rows(count)
        size = np.abs(expected).max()
        np.testing.assert_allclose(found, expected[:count], rtol=0, atol=TOLERANCE.get(form, 4e-2) * size)
        np.testing.assert_array_equal(found[:1], alone)  # a row computes to the same bits in any company


def test_experts_that_end_within_a_group_of_rows_are_refused(instruction_set: str) -> None:
    weights = {name: random_weight(name, WeightFormat.F32, 2 * 24, 24) for name in ("gate", "up", "down")}
    weights["router"] = random_weight("router", WeightFormat.F32, 2, 24)
    weights["rows"] = random_weight("rows", WeightFormat.F32, 4, 24)
    counts, columns = ({name: getattr(each, side) for name, each in weights.items()} for side in ("rows", "columns"))
    graph = GraphBuilder(counts, columns)
    x = graph.embedding("rows")
    y = graph.experts(x, graph.route(graph.linear(x, "router"), Route(2, 1)), ("gate", "up", "down"), Experts(2, 1))
    assert unsupported(graph.finish(x, y), weights) == "each part of gate has 24 rows, no multiple of 16"

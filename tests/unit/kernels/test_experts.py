"""Routes and experts in torch against their definition, written out row by row in float64."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.support.kernel_cases import make_context, make_step

from polyfleet.graph.ops import Experts, Op, OpKind, Route
from polyfleet.kernels.torch.experts import bind_experts, route

Array = NDArray[np.float64]
ROUTES = {
    "Mixtral's": Route(8, 2),
    "scores as they are": Route(8, 3, renormalise=False),
    "one of one": Route(1, 1, sigmoid=True, renormalise=False),
    "DeepSeek V2's": Route(12, 3, renormalise=False, scale=16.0, groups=4, top_groups=2),
    "DeepSeek V3's": Route(12, 4, sigmoid=True, scale=2.5, groups=3, top_groups=2, group_best=2),
    "all": Route(4, 4),
}


def written_out(logits: Array, attributes: Route, correction: Array) -> Array:
    """The shares of one row."""
    scores = 1 / (1 + np.exp(-logits)) if attributes.sigmoid else np.exp(logits) / np.exp(logits).sum()
    choice = scores + correction
    groups = np.sort(choice.reshape(attributes.groups, -1))[:, ::-1][:, : attributes.group_best].sum(-1)
    size = attributes.experts // attributes.groups
    best = set(np.argsort(-groups)[: attributes.top_groups].tolist())
    allowed = [expert for expert in np.argsort(-choice).tolist() if expert // size in best]
    shares = np.zeros_like(scores)
    for expert in allowed[: attributes.top_k]:
        shares[expert] = scores[expert]
    return shares * attributes.scale / (shares.sum() if attributes.renormalise else 1)


@pytest.mark.parametrize("corrected", [False, True])
@pytest.mark.parametrize("name", ROUTES)
def test_routes(name: str, corrected: bool) -> None:
    attributes, random = ROUTES[name], np.random.default_rng(3)
    logits = random.standard_normal((40, attributes.experts))
    correction = random.standard_normal(attributes.experts) * 0.3 * corrected
    found = route(torch.tensor(logits), attributes, torch.tensor(correction) if corrected else None)
    expected = np.array([written_out(row, attributes, correction) for row in logits])
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5, atol=1e-7)


def test_a_row_that_is_not_finite_spoils_no_other() -> None:
    logits = torch.randn(3, 8)
    logits[1] = torch.nan
    shares = route(logits, Route(8, 2))
    assert int((shares != 0).sum(1).max()) <= 2
    assert shares[[0, 2]].isfinite().all()
    assert shares[1].isnan().any()


@pytest.mark.parametrize(
    ("limit", "gated", "early"), [(0.0, True, False), (1.5, True, False), (0.0, False, False), (0.0, True, True)]
)
def test_experts(limit: float, gated: bool, early: bool) -> None:
    """Of gpt-oss too, whose experts have biases, a steeper gate and a limit. The last expert has no rows."""
    random, count, inner, outer = np.random.default_rng(4), 5, 6, 10
    shapes: Mapping[str, tuple[int, ...]] = {"gate": (inner, outer), "up": (inner, outer), "down": (outer, inner)}
    shapes = {name: shape for name, shape in shapes.items() if gated or name != "gate"}
    weights: dict[str, Any] = {name: random.standard_normal((count, *shape)) for name, shape in shapes.items()}
    biases: dict[str, Any] = {name: random.standard_normal((count, shape[0])) for name, shape in shapes.items()}
    x, shares = random.standard_normal((7, outer)), random.random((7, count))
    shares[:, -1] = shares[2] = 0
    held = {name: torch.tensor(each, dtype=torch.float32).flatten(0, 1) for name, each in weights.items()}
    held |= {f"{name}.bias": torch.tensor(each, dtype=torch.float32).flatten() for name, each in biases.items()}
    names = tuple(f"{name}.bias" for name in shapes) if limit else ()
    op = Op(OpKind.EXPERTS, (1, 2), (3,), tuple(shapes), names, Experts(count, count, limit, early))
    step, context = make_step([(7, 0)]), make_context(weights=held)
    found = bind_experts(op, context)(step, *(torch.tensor(each, dtype=torch.float32) for each in (x, shares)))
    expected = np.zeros_like(x)
    for row in range(len(x)):
        for expert in range(count):
            parts = {name: weights[name][expert] @ x[row] for name in shapes if name != "down"}
            if early:
                parts = {name: shares[row, expert] * each for name, each in parts.items()}
            if limit:
                parts = {name: each + biases[name][expert] for name, each in parts.items()}
                gate, up = np.minimum(parts["gate"], limit), np.clip(parts["up"], -limit, limit)
                inside = gate / (1 + np.exp(-1.702 * gate)) * (up + 1)
            elif not gated:
                inside = np.maximum(parts["up"], 0) ** 2
            else:
                inside = parts["gate"] / (1 + np.exp(-parts["gate"])) * parts["up"]
            result = weights["down"][expert] @ inside + (biases["down"][expert] if limit else 0)
            expected[row] += result if early else shares[row, expert] * result
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-4, atol=1e-5)

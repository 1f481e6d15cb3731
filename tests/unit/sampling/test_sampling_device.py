"""The device's draw against the host's, on a CPU and, where there is one, on an accelerator."""

import random

import numpy as np
import pytest
import torch
from tests.support import sampling_oracle

from polyfleet.backends import BackendRegistry
from polyfleet.sampling import device
from polyfleet.sampling.candidates import Filters
from polyfleet.sampling.draw import Draw
from polyfleet.sampling.host import MIN_TEMPERATURE, sample
from polyfleet.wire.sampling import SamplingParams

EDGE = 1e-6  # of the distribution: draws nearer than this to an edge may fall on either side


def params(source: random.Random) -> SamplingParams:
    return SamplingParams(
        temperature=source.choice([5e-324, 0.1, 0.7, 1.0, 1.7, 2.0]),
        top_p=source.choice([1.0, 1.0, 0.95123, 0.50321, 0.01234]),
        top_k=source.choice([0, 0, 1, 5, 40, 300, 10**9]),
        min_p=source.choice([0.0, 0.0, 0.02, 0.3, 1.0]),
        seed=source.randrange(2**64),
    )


def devices() -> list[str]:
    """A CPU, and torch's name of the best accelerator found."""
    best = BackendRegistry.find("auto")
    name = best.activate(0) if best else "cpu"
    return ["cpu"] if name == "cpu" else ["cpu", name]


@pytest.mark.parametrize("name", devices())
@pytest.mark.parametrize(("spread", "levels"), [(3.0, 0), (0.2, 0), (2.0, 5)])
def test_draws_are_the_hosts(name: str, spread: float, levels: int) -> None:
    """10,000 rows over all parameters; with `levels` many logits are equal."""
    rows, vocabulary = 3400, 700
    source = random.Random(levels)
    logits = spread * torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(levels))
    logits = (logits * levels).round() / levels if levels else logits
    draws = [Draw(params(source), position=row, choice=row % 16) for row in range(rows)]
    expected = [token.token_id if token else -1 for token in sample(logits, draws)]
    found = device.draw(logits.to(name), Filters.of(draws, vocabulary, MIN_TEMPERATURE))
    unlike = [row for row in range(rows) if found[row] != expected[row]]
    assert all(nearest_edge(logits[row], draws[row]) < EDGE for row in unlike)
    assert len(unlike) < rows / 500


def nearest_edge(row: torch.Tensor, draw: Draw) -> float:
    """How near a draw lies to an edge of what the filters leave."""
    _, probabilities = sampling_oracle.distribution(row.numpy().astype(np.float64), draw.params)
    at = sampling_oracle.uniform(draw.params.seed, draw.choice, draw.position)
    return float(np.abs(probabilities.cumsum() - at).min())


@pytest.mark.parametrize("name", devices())
def test_a_row_does_not_depend_on_its_batch(name: str) -> None:
    source = random.Random(5)
    logits = torch.randn(200, 900, generator=torch.Generator().manual_seed(5)).to(name)
    draws = [Draw(params(source), position=row) for row in range(200)]
    together = device.draw(logits, Filters.of(draws, 900, MIN_TEMPERATURE))
    for row in range(0, 200, 17):
        assert device.draw(logits[row : row + 1], Filters.of(draws[row : row + 1], 900, MIN_TEMPERATURE)) == [
            together[row]
        ]


def test_a_host_can_draw() -> None:
    assert device.can_draw(torch.device("cpu"))

"""A row's token and logprobs are the same to the bit alone and beside others, with any number of torch's threads."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from tests.support.drawing import Draw, sample_rows

from polyfleet.sampling.host import _mass
from polyfleet.wire.answers import SampledToken
from polyfleet.wire.sampling import SamplingParams

VOCABULARY = 49_152  # enough for torch to share a row among threads


@pytest.fixture(params=[1, 2, 3])
def _torch_threads(request: pytest.FixtureRequest) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


def make_logits(rows: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(1).standard_normal((rows, VOCABULARY), dtype=np.float32) * 3)


@pytest.mark.usefixtures("_torch_threads")
def test_the_mass_of_a_row() -> None:
    logits, temperatures = make_logits(9), np.linspace(0.3, 2, 9)[:, None]
    together = _mass(logits, temperatures)
    padded = torch.zeros(9, VOCABULARY + 16)
    padded[:, :VOCABULARY] = logits
    np.testing.assert_array_equal(_mass(padded[:, :VOCABULARY], temperatures), together)
    for row in range(9):
        alone = _mass(logits[row : row + 1], temperatures[row : row + 1])
        np.testing.assert_array_equal(alone, together[row : row + 1])
    exact = np.exp((logits.double() - logits.double().amax(-1, keepdim=True)).numpy() / temperatures).sum(-1)
    np.testing.assert_allclose(together[:, 0], exact, rtol=1e-5)


def draws() -> list[Draw]:
    params = [SamplingParams(temperature=0.3 * number + 0.4, seed=number) for number in range(8)]
    params += [SamplingParams(temperature=1.0, seed=3, top_p=0.9), SamplingParams(temperature=0.0)]
    return [Draw(each, 0, 40 + number, num_logprobs=4) for number, each in enumerate(params)]


@pytest.mark.usefixtures("_torch_threads")
def test_tokens_and_logprobs_of_a_row() -> None:
    logits = make_logits(10)
    together = sample_rows(logits, draws())
    for row, draw in enumerate(draws()):
        assert sample_rows(logits[row : row + 1], [draw]) == [together[row]]
        assert isinstance(together[row], SampledToken)

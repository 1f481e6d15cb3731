"""Masks: what may not be drawn never is, whatever the parameters, and what nobody limits stays as it was."""

import math
import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.support import sampling_oracle
from tests.support.drawing import Draw, columns, devices, random_draw, random_masks, sample_rows, starts, tokens
from tests.support.masking import dense, packed, sparse

from polyfleet.sampling.device import DeviceSampler
from polyfleet.sampling.host import CANDIDATES
from polyfleet.sampling.host import sample as host_sample
from polyfleet.sampling.masks import Masks, all_tokens, bar
from polyfleet.wire.answers import SampledToken
from polyfleet.wire.sampling import SamplingParams

EDGE = 1e-5  # draws nearer than this to an edge of the cumulated distribution may fall on either side
SAMPLERS = ["host", *devices()]


def sample(
    sampler: str, logits: torch.Tensor, draws: list[Draw], masks: NDArray[np.bool_] | None
) -> list[SampledToken | None]:
    if sampler == "host":
        return sample_rows(logits, draws, masks)
    on_device = DeviceSampler(torch.device(sampler), logits.shape[1])
    on_device.start(starts(draws))
    return tokens(on_device.draw(logits.to(sampler), columns(draws, masks)).to_host(), draws)


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("allowed", [1, 7, CANDIDATES, 3 * CANDIDATES, 9000])
def test_draws_equal_the_oracles_among_what_is_allowed(sampler: str, allowed: int) -> None:
    source, vocabulary, compared = random.Random(allowed), 16_384, 0
    logits = 2 * torch.randn(40, vocabulary, generator=torch.Generator().manual_seed(allowed))
    draws = [random_draw(source, vocabulary) for _ in range(40)]
    draws = [replace(draw, params=replace(draw.params, temperature=source.choice([0.3, 1.0, 2.0]))) for draw in draws]
    masks = np.zeros((40, vocabulary), dtype=bool)
    for mask in masks:
        mask[source.sample(range(vocabulary), allowed)] = True
    for row, (draw, token) in enumerate(zip(draws, sample(sampler, logits, draws, masks), strict=True)):
        values = logits[row].numpy().astype(np.float64)
        values = sampling_oracle.penalise(values, draw.params, draw.prompt_ids, draw.generated_ids)
        kept, probabilities = sampling_oracle.distribution(values[masks[row]], draw.params)
        at = sampling_oracle.uniform(draw.params.seed, draw.choice, draw.position)
        expected, distance = sampling_oracle.draw(kept, probabilities, at)
        assert token is not None
        assert masks[row, token.token_id]
        if distance > EDGE:
            assert token.token_id == np.flatnonzero(masks[row])[expected]
            compared += 1
    assert compared > 35


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_few_tokens_are_drawn_as_they_would_be_among_all(temperature: float) -> None:
    """Beside rows with a bias, and where the likeliest of all may be taken, too."""
    source, vocabulary = random.Random(1), 16_384
    logits = torch.randn(12, vocabulary, generator=torch.Generator().manual_seed(1)).round(decimals=1)  # with ties
    sizes = [1, 2, 7, 100, CANDIDATES, CANDIDATES + 1] * 2
    allowed = np.zeros(logits.shape, dtype=bool)
    for row, size in enumerate(sizes):
        allowed[row, source.sample(range(vocabulary), size)] = True
    allowed[6:, :4] |= np.eye(6, 4, dtype=bool)
    logits[6:, :4] += 9 * torch.eye(6, 4)
    params = [SamplingParams(temperature=temperature, seed=row, top_p=0.9 + 0.1 * (row % 2)) for row in range(12)]
    draws = [Draw(each, position=9) for each in params]
    masks = sparse(allowed)
    biased = Masks(masks.rows, masks.bits, masks.rows, np.full(12, vocabulary - 1), np.zeros(12, dtype=np.float32))
    likely, among_all = (
        host_sample(logits, replace(columns(draws), masks=each)).token_ids.tolist() for each in (masks, biased)
    )
    assert likely == among_all
    assert all(allowed[row, token_id] for row, token_id in enumerate(likely))
    assert likely[6:10] == [0, 1, 2, 3]


def test_rows_that_are_taken_keep_their_masks() -> None:
    allowed = random_masks(random.Random(3), 50, 70)
    masks = sparse(allowed)
    assert len(masks.rows) > 5
    assert len(masks.biased_rows) > 5
    np.testing.assert_array_equal(masks.touched(50), ~allowed.all(-1))
    for rows in (np.arange(50), np.arange(0, 50, 3), np.array([7]), np.arange(0)):
        np.testing.assert_array_equal(dense(masks.take(rows), len(rows), 70), allowed[rows])


def test_tokens_are_taken_out_of_a_set() -> None:
    bits = all_tokens(70)
    bar(bits, (0, 31, 32, 69, 69))
    expected = np.ones(70, dtype=bool)
    expected[[0, 31, 32, 69]] = False
    np.testing.assert_array_equal(bits, packed(expected))


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_the_least_likely_are_drawn_where_nothing_else_may_be(sampler: str) -> None:
    """Of 2,000 tokens the last two are allowed; penalties push them to where float32 ends."""
    logits = torch.zeros(300, 2000)
    logits[:, :1000] = 3e38
    logits[:, 1998:] = -3e38
    params = [
        SamplingParams(temperature=0.0),
        SamplingParams(temperature=0.0, repetition_penalty=2.0, presence_penalty=2.0),
        SamplingParams(top_p=1e-9),
        SamplingParams(top_k=1000),
        SamplingParams(temperature=1e-9, min_p=1.0),
        SamplingParams(temperature=2.0, repetition_penalty=2.0),
    ]
    draws = [Draw.behind((1998, 1999), (1998,), replace(params[row % 6], seed=row)) for row in range(300)]
    masks = np.zeros((300, 2000), dtype=bool)
    masks[:, 1998:] = True
    found = [token.token_id for token in sample(sampler, logits, draws, masks) if token]
    assert found[0::6] == [1998] * 50
    assert found[1::6] == [1998] * 50
    assert found[2::6] == [1998] * 50
    for number in range(3, 6):
        assert set(found[number::6]) == {1998, 1999}


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_rows_that_allow_everything_stay_the_same_to_the_bit(sampler: str) -> None:
    source = random.Random(4)
    logits = 3 * torch.randn(60, 3000, generator=torch.Generator().manual_seed(4))
    draws, masks = [random_draw(source, 3000) for _ in range(60)], random_masks(source, 60, 3000)
    masks[::3] = True
    without, found = sample(sampler, logits, draws, None), sample(sampler, logits, draws, masks)
    assert found[::3] == without[::3]
    assert sample(sampler, logits, draws, np.ones_like(masks)) == without
    assert found != without


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_logprobs_stay_the_models_own(sampler: str) -> None:
    logits = torch.tensor([[1.0, 3.0, 2.0, 3.0, -4.0]])
    expected = torch.log_softmax(logits[0].double(), dim=-1)
    mask = np.array([[False, False, True, False, True]])
    token = sample(sampler, logits, [Draw(SamplingParams(temperature=0.0), num_logprobs=3)], mask)[0]
    assert token is not None
    assert token.token_id == 2
    assert token.logprob == pytest.approx(float(expected[2]), abs=1e-6)
    assert token.top_ids == (1, 3, 2)
    assert token.top_logprobs == pytest.approx([float(expected[each]) for each in (1, 3, 2)], abs=1e-6)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_what_is_not_finite_is_found_where_it_may_not_be_drawn(sampler: str) -> None:
    logits = torch.zeros(2, 600)
    logits[1, 5] = -math.inf
    masks = np.ones((2, 600), dtype=bool)
    masks[:, 5] = False
    found = sample(sampler, logits, [Draw(SamplingParams(seed=1))] * 2, masks)
    assert found[0] is not None
    assert found[1] is None


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_not_even_a_uniform_of_one_reaches_past_what_is_allowed(sampler: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a device's rounding might make of one just below."""
    monkeypatch.setattr("polyfleet.sampling.candidates.uniforms", lambda seeds, *_: np.ones(len(seeds)))
    source = random.Random(8)
    logits = torch.randn(60, 3000, generator=torch.Generator().manual_seed(8))
    draws, masks = [random_draw(source, 3000) for _ in range(60)], random_masks(source, 60, 3000)
    for mask, token in zip(masks, sample(sampler, logits, draws, masks), strict=True):
        assert token is not None
        assert mask[token.token_id]

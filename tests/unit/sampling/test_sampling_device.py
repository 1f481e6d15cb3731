"""The device's draw against the host's, on a CPU and, where there is one, on an accelerator."""

import math
import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.support import sampling_oracle
from tests.support.drawing import Draw, columns, devices, random_draw, random_masks, starts, tokens

from polyfleet.sampling import device
from polyfleet.sampling.draw import Drawn, Start
from polyfleet.sampling.host import HostSampler
from polyfleet.wire.answers import SampledToken
from polyfleet.wire.sampling import SamplingParams

EDGE = 1e-6  # of the distribution: draws nearer than this to an edge may fall on either side
ROWS, VOCABULARY = 3400, 700


def make_logits(rows: int, spread: float, levels: int = 0) -> torch.Tensor:
    """With `levels` many are equal."""
    logits = spread * torch.randn(rows, VOCABULARY, generator=torch.Generator().manual_seed(levels))
    return (logits * levels).round() / levels if levels else logits


def make_bad(logits: torch.Tensor, source: random.Random) -> list[int]:
    """Put something that is not finite into some rows; returns them."""
    rows = source.sample(range(len(logits)), len(logits) // 50)
    for row in rows:
        logits[row, source.randrange(logits.shape[1])] = source.choice([math.nan, math.inf, -math.inf])
    return sorted(rows)


@pytest.mark.parametrize("name", devices())
@pytest.mark.parametrize(("spread", "levels"), [pytest.param(3.0, 0, marks=pytest.mark.slow), (0.2, 0), (2.0, 5)])
def test_draws_are_the_hosts(name: str, spread: float, levels: int) -> None:
    """10,000 rows over all parameters, three tokens each."""
    source = random.Random(levels)
    draws = [random_draw(source, VOCABULARY) for _ in range(ROWS)]
    host, other = HostSampler(), device.DeviceSampler(torch.device(name), VOCABULARY)
    host.start(starts(draws))
    other.start(starts(draws))
    num_unlike = 0
    for _ in range(3):
        logits, masks = make_logits(ROWS, spread, levels), random_masks(source, ROWS, VOCABULARY)
        bad = make_bad(logits, source)
        asked = columns(draws, masks)
        expected, found = host.draw(logits, asked), other.draw(logits.to(name), asked).to_host()
        assert np.flatnonzero(~found.finite).tolist() == np.flatnonzero(~expected.finite).tolist() == bad
        assert (found.token_ids >= 0).all()
        assert (found.token_ids < VOCABULARY).all()
        unlike = [
            row for row in np.flatnonzero(expected.finite).tolist() if found.token_ids[row] != expected.token_ids[row]
        ]
        assert all(nearest_edge(logits[row].numpy(), draws[row], masks[row]) < EDGE for row in unlike)
        assert_same_logprobs(tokens(found, draws), tokens(expected, draws), unlike)
        draws = [behind(draw, expected, row) for row, draw in enumerate(draws)]
        other.start(start for start in starts(draws) if start.slot in unlike)
        num_unlike += len(unlike)
    assert num_unlike < ROWS / 500


def behind(draw: Draw, drawn: Drawn, row: int) -> Draw:
    """The next draw of a sequence; a row that was not finite is asked for again."""
    generated = (*draw.generated_ids, int(drawn.token_ids[row]))
    return replace(draw, position=draw.position + 1, generated_ids=generated) if drawn.finite[row] else draw


def assert_same_logprobs(
    found: Sequence[SampledToken | None], expected: Sequence[SampledToken | None], unlike: Sequence[int]
) -> None:
    for row, (one, two) in enumerate(zip(found, expected, strict=True)):
        if one is not None and two is not None:
            assert one.top_ids == two.top_ids
            assert one.top_logprobs == pytest.approx(two.top_logprobs, abs=2e-6)
            assert row in unlike or one.logprob == pytest.approx(two.logprob, abs=2e-6)


def nearest_edge(row: NDArray[np.float32], draw: Draw, mask: NDArray[np.bool_]) -> float:
    """How near a draw lies to an edge of what the filters leave, or top_p to an edge of what it cuts."""
    values = sampling_oracle.penalise(row, draw.params, draw.prompt_ids, draw.generated_ids)[mask].astype(np.float64)
    _, probabilities = sampling_oracle.distribution(values, draw.params)
    at = sampling_oracle.uniform(draw.params.seed, draw.choice, draw.position)
    _, uncut = sampling_oracle.distribution(values, replace(draw.params, top_p=1.0, min_p=0.0))
    edges = np.abs(probabilities.cumsum() - at).min(), np.abs(uncut.cumsum() - draw.params.top_p).min()
    return float(min(edges) if draw.params.top_p < 1 else edges[0])


@pytest.mark.parametrize("name", devices())
def test_a_row_does_not_depend_on_its_batch(name: str) -> None:
    """To the bit, logprobs included."""
    source = random.Random(5)
    logits, masks = make_logits(200, 1.0).to(name), random_masks(source, 200, VOCABULARY)
    draws = [random_draw(source, VOCABULARY) for _ in range(200)]
    together = device.DeviceSampler(torch.device(name), VOCABULARY)
    together.start(starts(draws))
    found = tokens(together.draw(logits, columns(draws, masks)).to_host(), draws)
    for row in range(0, 200, 7):
        alone = device.DeviceSampler(torch.device(name), VOCABULARY)
        alone.start(starts(draws[row : row + 1]))
        drawn = alone.draw(logits[row : row + 1], columns(draws[row : row + 1], masks[row : row + 1]))
        assert tokens(drawn.to_host(), draws[row : row + 1]) == [found[row]]


@pytest.mark.parametrize("name", devices())
def test_bfloat16_and_staged_results(name: str) -> None:
    source = random.Random(6)
    logits = make_logits(90, 2.0).bfloat16()
    draws = [random_draw(source, VOCABULARY) for _ in range(90)]
    host, other = HostSampler(), device.DeviceSampler(torch.device(name), VOCABULARY)
    host.start(starts(draws))
    other.start(starts(draws))
    staged = other.draw(logits.to(name), columns(draws)).staged()
    if name != "cpu":
        torch.accelerator.synchronize()
    found, expected = tokens(staged.to_host(), draws), tokens(host.draw(logits, columns(draws)), draws)
    assert [token and token.top_ids for token in found] == [token and token.top_ids for token in expected]
    assert [token and token.token_id for token in found] == [token and token.token_id for token in expected]


@pytest.mark.parametrize("name", devices())
def test_zeros_of_both_signs_are_equal(name: str) -> None:
    draws = [Draw(SamplingParams(seed=seed), num_logprobs=4) for seed in range(40)]
    logits = torch.tensor([[-0.0, 0.0, -0.0, 0.0]]).expand(40, -1).to(name)
    found = tokens(device.DeviceSampler(torch.device(name), 4).draw(logits, columns(draws)).to_host(), draws)
    for seed, token in enumerate(found):
        assert token is not None
        assert token.token_id == int(4 * sampling_oracle.uniform(seed, 0, 0))
        assert token.top_ids == (0, 1, 2, 3)


def test_a_slot_that_starts_again_forgets() -> None:
    params = SamplingParams(temperature=0.0, presence_penalty=2.0)
    draws = columns([Draw(params)])
    logits = torch.tensor([[3.0, 2.5, 0.0, 0.0]])
    sampler = device.DeviceSampler(torch.device("cpu"), 4)
    sampler.start([Start(0, (0, 0), ())])
    assert [int(sampler.draw(logits, draws).token_ids) for _ in range(3)] == [0, 1, 0]
    sampler.start([Start(0, (), (0,))])
    assert [int(sampler.draw(logits, draws).token_ids) for _ in range(2)] == [1, 0]


@pytest.mark.parametrize("temperature", [0.0, 1e-6])
@pytest.mark.parametrize("penalty", [5e-324, 1e-46, 1e-40])
def test_repetition_penalties_of_next_to_nothing_are_numbers(penalty: float, temperature: float) -> None:
    """A logit of 0 stays 0, of whichever sign; one above becomes the highest there is."""
    params = SamplingParams(temperature=temperature, repetition_penalty=penalty)
    for prompt_ids, expected in (((1, 3), 2), ((0,), 2), ((1, 4), 4)):
        draws = [Draw.behind(prompt_ids, (), params)]
        for sampler in (HostSampler(), device.DeviceSampler(torch.device("cpu"), 5)):
            sampler.start(starts(draws))
            drawn = sampler.draw(torch.tensor([[-5.0, 0.0, 3.0, -0.0, 1.0]]), columns(draws))
            token_ids = drawn.token_ids if isinstance(drawn, Drawn) else drawn.to_host().token_ids
            assert token_ids.tolist() == [expected]


def test_a_penalised_slot_must_have_started() -> None:
    draws = columns([Draw(SamplingParams(frequency_penalty=1.0))])
    with pytest.raises(ValueError, match="counts"):
        device.DeviceSampler(torch.device("cpu"), 4).draw(torch.zeros(1, 4), draws)
    with pytest.raises(ValueError, match="counts"):
        HostSampler().draw(torch.zeros(1, 4), draws)


def test_no_rows() -> None:
    drawn = device.DeviceSampler(torch.device("cpu"), 4).draw(torch.zeros(0, 4), columns([])).to_host()
    assert (drawn.token_ids.shape, drawn.finite.shape, drawn.logprobs) == ((0,), (0,), None)


def test_a_host_can_draw() -> None:
    assert device.can_draw(torch.device("cpu"))

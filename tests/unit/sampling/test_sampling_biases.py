"""Biases: what a request adds to logits counts in every draw, greedy or not, and nowhere else."""

import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.support import sampling_oracle
from tests.support.drawing import Draw, columns, devices, random_draw, starts, tokens
from tests.support.masking import packed

from polyfleet.sampling.counts import TokenCounts
from polyfleet.sampling.device import DeviceSampler
from polyfleet.sampling.host import sample
from polyfleet.sampling.masks import BARRED, Masks
from polyfleet.wire.answers import SampledToken
from polyfleet.wire.sampling import GREEDY

VOCABULARY, ROWS = 1000, 48
EDGE = 1e-4  # draws nearer than this to an edge, and likeliest tokens nearer to the next, may fall on either side
SAMPLERS = ["host", *devices()]
Biases = dict[int, dict[int, float]]


def drawn(sampler: str, logits: torch.Tensor, draws: list[Draw], masks: Masks | None) -> list[SampledToken | None]:
    wanted = replace(columns(draws), masks=masks)
    if sampler == "host":
        counts = {each.slot: TokenCounts(each.prompt_ids, each.generated_ids) for each in starts(draws)}
        return tokens(sample(logits, wanted, counts), draws)
    on_device = DeviceSampler(torch.device(sampler), logits.shape[1])
    on_device.start(starts(draws))
    return tokens(on_device.draw(logits.to(sampler), wanted).to_host(), draws)


def asked(seed: int) -> tuple[torch.Tensor, list[Draw], Biases]:
    """Logits, half of the draws greedy, and biases of two of three rows: some of 300 tokens, some next to nothing."""
    source = random.Random(seed)
    logits = 2 * torch.randn(ROWS, VOCABULARY, generator=torch.Generator().manual_seed(seed))
    draws = [random_draw(source, VOCABULARY) for _ in range(ROWS)]
    temperatures = [0.0 if row % 2 else source.choice([0.3, 1.0, 2.0]) for row in range(ROWS)]
    draws = [replace(d, params=replace(d.params, temperature=t)) for d, t in zip(draws, temperatures, strict=True)]
    biases = {
        row: {
            token_id: source.choice([-100.0, -3.5, 0.1, 4.25, 7.0])
            for token_id in source.sample(range(VOCABULARY), source.choice([1, 7, 300]))
        }
        for row in range(ROWS)
        if row % 3
    }
    return logits, draws, biases


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_draws_equal_the_oracles(sampler: str) -> None:
    logits, draws, biases = asked(1)
    sets: dict[int, NDArray[np.bool_]] = {}
    for row in range(0, ROWS, 4):  # beside sets of tokens, and beside bars
        sets[row] = np.random.default_rng(row).random(VOCABULARY) < 0.5
    for row in range(1, ROWS, 4):
        biases.setdefault(row, {})[int(logits[row].argmax())] = BARRED
    masks = Masks.of({row: packed(allowed) for row, allowed in sets.items()}, dict(sorted(biases.items())))
    compared = 0
    for row, (draw, token) in enumerate(zip(draws, drawn(sampler, logits, draws, masks), strict=True)):
        values = logits[row].numpy().astype(np.float64)
        values = sampling_oracle.penalise(values, draw.params, draw.prompt_ids, draw.generated_ids)
        for token_id, bias in biases.get(row, {}).items():
            values[token_id] += bias
        values[~sets.get(row, np.ones(VOCABULARY, dtype=bool))] = BARRED
        if draw.params.greedy:
            second, first = np.sort(values)[-2:]
            expected, distance = int(values.argmax()), first - second
        else:
            kept, probabilities = sampling_oracle.distribution(values, draw.params)
            at = sampling_oracle.uniform(draw.params.seed, draw.choice, draw.position)
            expected, distance = sampling_oracle.draw(kept, probabilities, at)
        if distance > EDGE:
            assert token is not None
            assert token.token_id == expected, (row, draw.params)
            compared += 1
    assert compared > ROWS * 0.8


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_other_rows_stay_the_same_to_the_bit(sampler: str) -> None:
    logits, draws, biases = asked(2)
    without, found = drawn(sampler, logits, draws, None), drawn(sampler, logits, draws, Masks.of({}, biases))
    assert found[::3] == without[::3]
    assert found != without
    zeros = {row: dict.fromkeys(of_row, 0.0) for row, of_row in biases.items()}
    assert drawn(sampler, logits, draws, Masks.of({}, zeros)) == without


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_logprobs_stay_the_models_own(sampler: str, dtype: torch.dtype) -> None:
    logits = torch.tensor([[1.0, 3.0, 2.0, -4.0], [1.0, 3.0, 2.0, -4.0]], dtype=dtype)
    own = torch.log_softmax(logits[0].double(), dim=-1)
    before = logits.clone()
    wanted = [Draw(GREEDY, num_logprobs=2)] * 2
    biased, free = drawn(sampler, logits, wanted, Masks.of({}, {0: {3: 100.0, 1: -100.0}}))
    assert biased is not None
    assert free is not None
    assert (biased.token_id, free.token_id) == (3, 1)
    assert biased.logprob == pytest.approx(float(own[3]), abs=1e-6)
    assert biased.top_ids == free.top_ids == (1, 2)
    assert torch.equal(logits, before)

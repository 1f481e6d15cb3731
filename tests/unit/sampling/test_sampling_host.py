"""The sampler against an oracle in float64, its distribution, and its independence of the batch."""

import math
import random
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from tests.support import sampling_oracle
from tests.support.drawing import Draw, columns, sample_rows
from torch.profiler import ProfilerActivity, profile

from polyfleet.sampling.draw import Drawn
from polyfleet.sampling.host import CANDIDATES, _likeliest, sample
from polyfleet.wire.answers import SampledToken
from polyfleet.wire.sampling import SamplingParams

EDGE = 1e-5  # draws nearer than this to an edge of the cumulated distribution may fall on either side


def make_draw(params: SamplingParams, position: int = 3, choice: int = 0, num_logprobs: int | None = None) -> Draw:
    return Draw.behind(range(position), (), params, choice, num_logprobs)


def ids(tokens: Sequence[SampledToken | None]) -> list[int]:
    assert all(token is not None for token in tokens)
    return [token.token_id for token in tokens if token is not None]


def random_params(source: random.Random) -> SamplingParams:
    return SamplingParams(
        temperature=source.choice([0.3, 0.7, 1.0, 1.7, 2.0]),
        top_p=source.choice([1.0, 1.0, 0.95, 0.5, 0.01]),
        top_k=source.choice([0, 0, 1, 5, 40, 300, 5000]),
        min_p=source.choice([0.0, 0.0, 0.02, 0.3, 1.0]),
        seed=source.randrange(2**64),
        repetition_penalty=source.choice([1.0, 1.0, 1.3, 0.8]),
        presence_penalty=source.choice([0.0, 0.0, 1.5, -0.5]),
        frequency_penalty=source.choice([0.0, 0.0, 0.7, -0.2]),
    )


@pytest.mark.parametrize(("vocabulary", "spread"), [(50, 2.0), (1000, 3.0), (1000, 0.3), (3000, 6.0), (16384, 2.0)])
def test_draws_equal_the_oracle(vocabulary: int, spread: float) -> None:
    """Small vocabularies are all candidates, flat ones need the fall-back over the whole row."""
    source = random.Random(vocabulary + int(spread * 10))
    generator = torch.Generator().manual_seed(vocabulary)
    logits = spread * torch.randn(60, vocabulary, generator=generator)
    draws, contexts, compared = [], [], 0
    for _ in range(len(logits)):
        prompt = [source.randrange(vocabulary) for _ in range(source.randrange(1, 20))]
        generated = [source.randrange(vocabulary) for _ in range(source.randrange(20))]
        contexts.append((prompt, generated))
        draws.append(Draw.behind(prompt, generated, random_params(source), source.randrange(16)))
    for row, draw, context, token_id in zip(logits, draws, contexts, ids(sample_rows(logits, draws)), strict=True):
        values = row.numpy().astype(np.float64)
        values = sampling_oracle.penalise(values, draw.params, *context)
        kept, probabilities = sampling_oracle.distribution(values, draw.params)
        at = sampling_oracle.uniform(draw.params.seed, draw.choice, sum(map(len, context)))
        expected, distance = sampling_oracle.draw(kept, probabilities, at)
        assert token_id in kept
        if distance > EDGE:
            assert token_id == expected
            compared += 1
    assert compared > 50


def test_greedy_takes_the_lowest_of_equal_ids() -> None:
    logits = torch.tensor([[0.0, 3.0, 1.0, 3.0], [2.0, 2.0, 2.0, 2.0], [-5.0, -1.0, -9.0, -1.0]])
    greedy = SamplingParams(temperature=0.0)
    assert ids(sample_rows(logits, [make_draw(greedy)] * 3)) == [1, 0, 1]
    assert ids(sample_rows(logits, [make_draw(greedy, num_logprobs=1)] * 3)) == [1, 0, 1]  # not the fast path


def test_greedy_in_bfloat16_takes_the_lowest_of_equal_ids() -> None:
    logits = torch.zeros(1, 5000, dtype=torch.bfloat16)
    logits[0, [4000, 77, 300]] = 1.5
    assert ids(sample_rows(logits, [make_draw(SamplingParams(temperature=0.0))])) == [77]


def test_equal_logits_are_ranked_by_id() -> None:
    """All probabilities are equal, so the uniform u falls on id floor(u * V): also beyond the candidates."""
    vocabulary = 4 * CANDIDATES
    draws = [make_draw(SamplingParams(seed=seed)) for seed in range(200)]
    found = ids(sample_rows(torch.zeros(len(draws), vocabulary), draws))
    expected = [int(sampling_oracle.uniform(seed, 0, 3) * vocabulary) for seed in range(200)]
    assert found == expected
    assert max(found) > 2 * CANDIDATES


def test_top_k_takes_the_lower_of_equal_ids() -> None:
    logits = torch.zeros(1, 2000)
    logits[0, [1999, 5, 700]] = 1.0
    found = {ids(sample_rows(logits, [make_draw(SamplingParams(seed=seed, top_k=2))]))[0] for seed in range(50)}
    assert found == {5, 700}


def test_tiny_temperature_is_greedy() -> None:
    logits = torch.tensor([[1.0, 1.0000001, 0.5]])
    for temperature in (1e-6, 1e-12, 5e-324):
        assert ids(sample_rows(logits * 1000, [make_draw(SamplingParams(temperature=temperature))])) == [1]


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        SamplingParams(temperature=0.6),
        SamplingParams(top_k=8),
        SamplingParams(top_p=0.8),
        SamplingParams(min_p=0.1, temperature=1.5),
        SamplingParams(top_k=20, top_p=0.9, min_p=0.05),
    ],
)
def test_distribution(params: SamplingParams) -> None:
    """Chi-squared of 4,000 draws at consecutive positions; seeds are fixed, so this never flickers."""
    number = 4000
    row = 2 * torch.randn(400, generator=torch.Generator().manual_seed(1))
    draws = [make_draw(params, position) for position in range(number)]
    found = np.bincount(ids(sample_rows(row.expand(number, -1), draws)), minlength=len(row))
    kept, probabilities = sampling_oracle.distribution(row.numpy().astype(np.float64), params)
    assert found.sum() == found[kept].sum() == number
    expected = probabilities * number
    often = expected >= 5
    observed = np.append(found[kept][often], found[kept][~often].sum())
    wanted = np.append(expected[often], expected[~often].sum())
    observed, wanted = observed[wanted > 0], wanted[wanted > 0]
    freedom = len(wanted) - 1
    chi_squared = float(((observed - wanted) ** 2 / wanted).sum())
    assert chi_squared < freedom + 4 * math.sqrt(2 * freedom)  # mean + 4 standard deviations


def test_a_row_does_not_depend_on_its_batch() -> None:
    source = random.Random(3)
    logits = 3 * torch.randn(24, 2000, generator=torch.Generator().manual_seed(3))
    draws = []
    for number in range(24):
        params = random_params(source) if number % 3 else SamplingParams(temperature=0.0)
        draws.append(Draw.behind(range(5), range(number), params, number, number if number % 2 else None))
    together = sample_rows(logits, draws)
    alone = [sample_rows(logits[row : row + 1], [draw])[0] for row, draw in enumerate(draws)]
    order = list(range(24))
    source.shuffle(order)
    shuffled = sample_rows(logits[order], [draws[row] for row in order])
    assert ids(together) == ids(alone)
    assert [shuffled[order.index(row)] for row in range(24)] == together


def test_candidates_are_the_likeliest() -> None:
    """Of 16 x 1,024 tokens with many equal logits: all that are over the last candidate's, and none twice."""
    logits = torch.randint(0, 3000, (4, 16 * 1024), generator=torch.Generator().manual_seed(2)).float()
    values, places = _likeliest(logits, 256)
    for row, found, found_ids in zip(logits, values, places, strict=True):
        assert torch.equal(row[found_ids], found)
        assert len(set(found_ids.tolist())) == 256
        assert torch.equal(found.sort().values, row.topk(256).values.sort().values)


def test_logits_are_left_alone() -> None:
    logits = torch.randn(2, 50)
    before = logits.clone()
    params = SamplingParams(repetition_penalty=1.5, presence_penalty=1.0)
    sample_rows(logits, [Draw.behind((1, 2), (3, 4), params)] * 2)
    assert torch.equal(logits, before)


def test_penalties_by_hand() -> None:
    """Repetition counts prompt and answer, presence and frequency the answer alone."""
    logits = torch.tensor([[4.0, 3.9, -1.0, 3.8]])

    def greedy(
        prompt: Sequence[int],
        generated: Sequence[int],
        repetition_penalty: float = 1.0,
        presence_penalty: float = 0.0,
        frequency_penalty: float = 0.0,
    ) -> int:
        params = SamplingParams(
            temperature=0.0,
            repetition_penalty=repetition_penalty,
            presence_penalty=presence_penalty,
            frequency_penalty=frequency_penalty,
        )
        return ids(sample_rows(logits, [Draw.behind(prompt, generated, params)]))[0]

    assert greedy((0,), (), repetition_penalty=1.1) == 1
    assert greedy((0,), (1,), repetition_penalty=1.1) == 3
    assert greedy((2,), (), repetition_penalty=0.1) == 0  # -1 * 0.1 is less low, not higher than others
    assert greedy((0,), (), presence_penalty=2.0, frequency_penalty=2.0) == 0
    assert greedy((), (0,), presence_penalty=0.15) == 1
    assert greedy((), (0, 0), frequency_penalty=0.06) == 1
    assert greedy((), (0,), frequency_penalty=0.06) == 0
    assert greedy((0,), (), repetition_penalty=1e-30) == 0  # would overflow to infinity


def test_logprobs_are_of_the_models_own_distribution() -> None:
    logits = torch.tensor([[1.0, 3.0, 2.0, 3.0, -4.0]])
    expected = torch.log_softmax(logits[0].double(), dim=-1)
    params = SamplingParams(temperature=0.0, repetition_penalty=2.0, presence_penalty=1.0)
    token = sample_rows(logits, [Draw.behind((1, 3), (), params, num_logprobs=3)])[0]
    assert token is not None
    assert token.token_id == 2  # penalised, 1 and 3 fall to 1.5
    assert token.logprob == pytest.approx(float(expected[2]), abs=1e-6)
    assert token.top_ids == (1, 3, 2)
    assert token.top_logprobs == pytest.approx([float(expected[each]) for each in (1, 3, 2)], abs=1e-6)


def test_logprobs_without_alternatives_and_more_than_there_are() -> None:
    logits = torch.tensor([[0.0, 1.0]])
    greedy = SamplingParams(temperature=0.0)
    none, all_of_them = sample_rows(
        logits.expand(2, -1), [make_draw(greedy, num_logprobs=0), make_draw(greedy, num_logprobs=9)]
    )
    assert none is not None
    assert all_of_them is not None
    assert none.logprob == pytest.approx(-math.log(1 + math.exp(-1)), abs=1e-6)
    assert none.top_ids == ()
    assert all_of_them.top_ids == (1, 0)


def test_alternatives_are_the_likeliest_of_many_and_no_thread_of_torch_is_woken_for_them() -> None:
    logits = torch.randn(3, 49152, generator=torch.Generator().manual_seed(0)).round(decimals=1)
    asked = columns([make_draw(SamplingParams(temperature=0.0), num_logprobs=number) for number in (0, 20, 5)])
    likeliest = Drawn(logits.argmax(dim=-1).numpy(), np.ones(3, dtype=bool))
    with profile(activities=[ProfilerActivity.CPU]) as run:
        told = sample(logits, asked, likeliest=likeliest).logprobs
    assert {"aten::topk", "aten::amax", "aten::ge", "aten::sort"}.isdisjoint(each.key for each in run.key_averages())
    assert told is not None
    expected = torch.log_softmax(logits.double(), dim=-1)
    order = logits.argsort(dim=-1, descending=True, stable=True).numpy()
    for row, number in ((1, 20), (2, 5)):
        assert told.top_ids[row, :number].tolist() == order[row, :number].tolist()
        assert told.top[row, :number] == pytest.approx(expected[row, order[row, :number]].numpy(), abs=1e-5)
    assert told.drawn == pytest.approx(expected.amax(dim=-1).numpy(), abs=1e-5)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("params", [SamplingParams(temperature=0.0), SamplingParams(seed=4)])
def test_a_row_that_is_not_finite_fails_alone(bad: float, params: SamplingParams) -> None:
    logits = torch.randn(3, 600, generator=torch.Generator().manual_seed(0))
    draws = [make_draw(params)] * 3
    expected = sample_rows(logits, draws)
    logits[1, 321] = bad
    assert sample_rows(logits, draws) == [expected[0], None, expected[2]]


def test_no_rows() -> None:
    assert sample_rows(torch.empty(0, 10), []) == []

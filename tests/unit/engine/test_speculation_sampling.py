"""Drafts and draws: distribution, seeds, penalties and logprobs are those without drafts."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from tests.support.batching import Outcomes, over
from tests.support.fake_executor import FakeExecutor, FakePending

from polyfleet.engine.batching.batch import BatchCounters, BatchLimits
from polyfleet.engine.speculation.ngrams import NgramDrafter
from polyfleet.engine.speculation.speculation import Speculator
from polyfleet.sampling.host import HostSampler
from polyfleet.sampling.masks import Masks
from polyfleet.wire.answers import SampledToken
from polyfleet.wire.requests import SequenceRequest
from polyfleet.wire.sampling import GREEDY, SamplingParams

VOCABULARY = 5
SEQUENCES, TOKENS = 250, 16
Tokens = dict[str, list[SampledToken]]
CHI_SQUARE = 45.3  # that one in a thousand tables of 5 x 5 exceeds by chance, 20 degrees of freedom


class Chain(FakeExecutor):
    """Its logits depend on the token before, and are drawn from by the host's sampler."""

    table = np.random.default_rng(3).normal(0, 1.5, (VOCABULARY, VOCABULARY)).astype(np.float32)

    def __init__(self) -> None:
        super().__init__()
        self._sampler = HostSampler()

    def launch(self, plan: Any) -> FakePending:
        self._asked, self._behind = plan.draws(), plan.token_ids[plan.draw_rows].copy()
        self._sampler.start(plan.starts)
        return super().launch(plan)

    def draw(self, pending: Any, masks: Masks | None = None) -> None:
        logits = torch.from_numpy(self.table[self._behind])
        self._drawn = self._sampler.draw(logits, replace(self._asked, masks=masks))
        pending.token_ids, pending.drawn = self._drawn.token_ids.tolist(), True

    def collect(self, pending: Any, timeout: float) -> Any:
        output = super().collect(pending, timeout)
        output.logprobs = self._drawn.logprobs
        return output


def tokens_of(requests: list[SequenceRequest], speculator: Speculator | None) -> tuple[Tokens, BatchCounters]:
    limits = BatchLimits(16, 128, 64, vocabulary_size=VOCABULARY)
    batcher = over(Chain(), limits, num_blocks=400, speculator=speculator)
    found: Tokens = {each.sequence_id: [] for each in requests}
    for each in requests:
        batcher.add(each)
    outcomes = Outcomes()
    while batcher.has_work:
        report = batcher.step()
        outcomes.add(report)
        for update in report.updates:
            found[update.sequence_id] += update.tokens
    assert all(each.error == "" for each in outcomes.values())
    return found, batcher.counters


def asked(number: int, params: SamplingParams, **more: Any) -> SequenceRequest:
    prompt = (number % VOCABULARY, 0, 1, 2, 3, 4, 0, 1)
    return SequenceRequest(f"s{number}", prompt, params, max_tokens=TOKENS, **more)


def speculator() -> Speculator:
    return Speculator(NgramDrafter(1, 4), 4)


@pytest.mark.parametrize("choices", [False, True], ids=["seeds", "choices"])
def test_drafts_keep_the_distribution(choices: bool) -> None:
    """Of many requests, and of the choices of one seed."""
    drawn = [(7, number) if choices else (number, 0) for number in range(SEQUENCES)]
    requests = [
        asked(number, SamplingParams(temperature=1.0, seed=seed), choice=choice)
        for number, (seed, choice) in enumerate(drawn)
    ]
    found, counters = tokens_of(requests, speculator())
    assert counters.accepted_drafts > SEQUENCES
    counts = np.zeros((VOCABULARY, VOCABULARY))
    for each in requests:
        ids = [each.prompt_ids[-1], *(token.token_id for token in found[each.sequence_id])]
        for before, after in pairwise(ids):
            counts[before, after] += 1
    weights = np.exp(Chain.table.astype(np.float64))
    expected = counts.sum(axis=1, keepdims=True) * weights / weights.sum(axis=1, keepdims=True)
    assert ((counts - expected) ** 2 / expected).sum() < CHI_SQUARE


PENALTIES: dict[str, Any] = {"repetition_penalty": 1.3, "presence_penalty": 0.4, "frequency_penalty": 0.3}


@pytest.mark.parametrize(
    "params",
    [
        GREEDY,
        SamplingParams(temperature=0.8, seed=1),
        SamplingParams(temperature=1.2, top_k=3, top_p=0.9, seed=2),
        SamplingParams(**PENALTIES),
        SamplingParams(temperature=1.0, seed=3, **PENALTIES),
        SamplingParams(repetition_penalty=1.05),
    ],
    ids=str,
)
@pytest.mark.parametrize("more", [{}, {"logprobs": 2}, {"logit_bias": {1: 1.5, 3: -2.0}, "logprobs": 1}], ids=str)
def test_tokens_and_logprobs_are_those_without_drafts(params: SamplingParams, more: dict[str, Any]) -> None:
    requests = [asked(number, replace(params, seed=number), **more) for number in range(6)]
    with_drafts, counters = tokens_of(requests, speculator())
    without, _ = tokens_of(requests, None)
    assert with_drafts == without
    assert counters.accepted_drafts > 0

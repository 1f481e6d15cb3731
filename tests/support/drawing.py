"""Draws asked row by row, as a test thinks of them, made into columns; what they came to made into tokens again."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from tests.support.masking import sparse
from torch import Tensor

from polyfleet.backends import BackendRegistry
from polyfleet.sampling.counts import TokenCounts
from polyfleet.sampling.device import can_draw
from polyfleet.sampling.draw import PARAMETERS, Drawn, Draws, Start, parameters
from polyfleet.sampling.host import sample
from polyfleet.wire.answers import SampledToken
from polyfleet.wire.sampling import SamplingParams


@dataclass(frozen=True)
class Draw:
    """The token wanted behind a prompt and an answer, or at a position whose tokens don't matter."""

    params: SamplingParams
    choice: int = 0
    position: int = 0
    num_logprobs: int | None = None
    prompt_ids: Sequence[int] = ()
    generated_ids: Sequence[int] = ()

    @classmethod
    def behind(
        cls,
        prompt_ids: Sequence[int],
        generated_ids: Sequence[int],
        params: SamplingParams,
        choice: int = 0,
        num_logprobs: int | None = None,
    ) -> "Draw":
        """The draw behind these tokens."""
        position = len(prompt_ids) + len(generated_ids)
        return cls(params, choice, position, num_logprobs, prompt_ids, generated_ids)


def columns(draws: Sequence[Draw], masks: NDArray[np.bool_] | None = None) -> Draws:
    """The draws as columns; row s belongs to slot s."""
    rows = [parameters(draw.params, draw.choice, draw.num_logprobs) for draw in draws]
    positions = np.array([draw.position for draw in draws], dtype=np.int64)
    limits = None if masks is None else sparse(masks)
    return Draws(np.array(rows, dtype=PARAMETERS), np.arange(len(draws)), positions, limits)


def starts(draws: Sequence[Draw]) -> list[Start]:
    """The beginnings of their slots, for those that are penalised."""
    penalised = [slot for slot, draw in enumerate(draws) if draw.params.penalised]
    return [Start(slot, draws[slot].prompt_ids, draws[slot].generated_ids) for slot in penalised]


def tokens(drawn: Drawn, draws: Sequence[Draw]) -> list[SampledToken | None]:
    """What each row came to; None where it is not finite."""
    found: list[SampledToken | None] = []
    for row, draw in enumerate(draws):
        token, number, logprobs = SampledToken(int(drawn.token_ids[row])), draw.num_logprobs, drawn.logprobs
        if number is not None:
            assert logprobs is not None
            top_ids, top = logprobs.top_ids[row, :number].tolist(), logprobs.top[row, :number].tolist()
            token = SampledToken(token.token_id, float(logprobs.drawn[row]), tuple(top_ids), tuple(top))
        found.append(token if drawn.finite[row] else None)
    return found


def sample_rows(
    logits: Tensor, draws: Sequence[Draw], masks: NDArray[np.bool_] | None = None
) -> list[SampledToken | None]:
    """The host's tokens."""
    counts = {start.slot: TokenCounts(start.prompt_ids, start.generated_ids) for start in starts(draws)}
    return tokens(sample(logits, columns(draws, masks), counts), draws)


def devices() -> list[str]:
    """A CPU, and torch's name of the best accelerator found that computes in float64."""
    best = BackendRegistry.find("auto")
    name = best.activate(0) if best else "cpu"
    return ["cpu"] if name == "cpu" or not can_draw(torch.device(name)) else ["cpu", name]


def random_draw(source: random.Random, vocabulary: int) -> Draw:
    """Any parameters, behind any tokens, with or without logprobs."""
    params = SamplingParams(
        temperature=source.choice([0.0, 5e-324, 0.1, 0.7, 1.0, 1.7, 2.0]),
        top_p=source.choice([1.0, 1.0, 0.95123, 0.50321, 0.01234]),
        top_k=source.choice([0, 0, 1, 5, 40, 300, 10**9]),
        min_p=source.choice([0.0, 0.0, 0.02, 0.3, 1.0]),
        seed=source.randrange(2**64),
        repetition_penalty=source.choice([1.0, 1.0, 1.0, 1.3, 0.8]),
        presence_penalty=source.choice([0.0, 0.0, 0.0, 1.5, -0.5]),
        frequency_penalty=source.choice([0.0, 0.0, 0.0, 0.7, -0.2]),
    )
    prompt, generated = ([source.randrange(vocabulary) for _ in range(source.randrange(20))] for _ in range(2))
    return Draw.behind(prompt, generated, params, source.randrange(16), source.choice([None, None, 0, 1, 5, 20]))


def random_masks(source: random.Random, rows: int, vocabulary: int) -> NDArray[np.bool_]:
    """Some rows allow everything, some one token, some a share of all, some nearly all."""
    shares = np.array([[source.choice([0.0, 0.01, 0.3, 0.9, 0.9999, 1.0, 1.0])] for _ in range(rows)])
    masks = np.random.default_rng(source.randrange(2**32)).random((rows, vocabulary)) < shares
    masks[np.arange(rows), [source.randrange(vocabulary) for _ in range(rows)]] = True
    return masks

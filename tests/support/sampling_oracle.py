"""The sampler written again, the slow way: plain Python and float64 over whole rows, one draw at a time."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyfleet.wire.sampling import SamplingParams

Floats = NDArray[np.float64]
WORD = 2**32


def philox_words(counter: tuple[int, ...], key: tuple[int, ...]) -> tuple[int, ...]:
    """Philox-4x32-10 in Python's integers."""
    c, k = list(counter), list(key)
    for _ in range(10):
        first, second = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [second // WORD ^ c[1] ^ k[0], second % WORD, first // WORD ^ c[3] ^ k[1], first % WORD]
        k = [(k[0] + 0x9E3779B9) % WORD, (k[1] + 0xBB67AE85) % WORD]
    return tuple(c)


def uniform(seed: int, choice: int, position: int) -> float:
    """The number in [0, 1) of one draw."""
    counter = (position % WORD, position // WORD, choice, 0)
    words = philox_words(counter, (seed % WORD, seed // WORD))
    return (words[0] // 32 * 2**26 + words[1] // 64) / 2**53


def penalise(
    logits: NDArray[Any], params: SamplingParams, prompt_ids: Sequence[int], generated_ids: Sequence[int]
) -> NDArray[Any]:
    """Logits after repetition, presence and frequency penalties, in their own precision."""
    out: NDArray[Any] = logits.copy()
    for token_id in {*prompt_ids, *generated_ids}:
        penalty = params.repetition_penalty
        out[token_id] = out[token_id] / penalty if out[token_id] > 0 else out[token_id] * penalty
    for token_id, count in Counter(generated_ids).items():
        out[token_id] -= params.presence_penalty + params.frequency_penalty * count
    return out


def distribution(logits: Floats, params: SamplingParams) -> tuple[list[int], Floats]:
    """Ids left by the filters in order of descending probability, ties by id, and their renormalised probabilities."""
    scaled = (logits - logits.max()) / params.temperature
    probabilities = np.exp(scaled) / np.exp(scaled).sum()
    order = sorted(range(len(logits)), key=lambda token_id: (-logits[token_id], token_id))
    if params.top_k:
        order = order[: params.top_k]
    left = probabilities[order].sum()
    if params.top_p < 1:
        kept, mass = [], 0.0
        for token_id in order:
            kept.append(token_id)
            mass += probabilities[token_id]
            if mass >= params.top_p * left:
                break
        order = kept
    order = [token_id for token_id in order if probabilities[token_id] >= params.min_p * probabilities[order[0]]]
    kept_probabilities = probabilities[order]
    return order, kept_probabilities / kept_probabilities.sum()


def draw(ids: Sequence[int], probabilities: Floats, at: float) -> tuple[int, float]:
    """The token whose share of the cumulated distribution covers `at`, and the distance of `at` to the next edge."""
    edges = probabilities.cumsum()
    index = min(int((edges <= at).sum()), len(ids) - 1)
    return ids[index], float(np.abs(edges - at).min())

"""Whether two continuations of one request are the same, up to what floating point may do.

Logits differ in low bits with the device and, but in the CPU library, with the size of the batch. So two runs may part
where, and only where, logits that are off by at most `tolerance` could have led to either token:

* greedy: both tokens' logits are within 2 · tolerance of the largest;
* drawn: the uniform lies within the token's part of the CDF, widened by the probability of the tokens that rank within
  2 · tolerance of it (they may have changed places), and by 2 · tolerance / temperature (a change of d in every logit
  changes no cumulated probability by more than d / temperature · 2).
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from polyfleet.sampling.philox import uniforms
from polyfleet.wire.sampling import SamplingParams

TOLERANCE = {"float32": 1e-3, "bfloat16": 0.25}  # of one logit, by computing dtype

Logits = Callable[[list[int]], NDArray[np.float64]]  # token ids -> logits [V] of the next token


def assert_same_tokens(
    logits: Logits,
    prompt_ids: Sequence[int],
    params: SamplingParams,
    first: Sequence[int],
    second: Sequence[int],
    tolerance: float,
    choice: int = 0,
) -> int:
    """Assert that two continuations agree as above. Returns how many tokens they share.

    `logits` are the reference's. Only unfiltered and unpenalised sampling is understood.
    """
    assert params.top_p == 1.0
    assert params.top_k == 0
    assert params.min_p == 0.0
    assert not params.penalised
    same = next((at for at, pair in enumerate(zip(first, second, strict=False)) if pair[0] != pair[1]), None)
    if same is None:
        assert len(first) == len(second), "one continuation goes on behind the other's end"
        return len(first)
    row = logits([*prompt_ids, *first[:same]])
    uniform = uniforms([params.seed], [choice], [len(prompt_ids) + same])[0]
    for token_id in (first[same], second[same]):
        assert reachable(row, token_id, params.temperature, float(uniform), tolerance), (
            f"token {token_id} at {same} is out of reach of {uniform}"
        )
    return same


def reachable(row: NDArray[np.float64], token_id: int, temperature: float, uniform: float, tolerance: float) -> bool:
    """Whether logits within `tolerance` of `row` [V] could give this token."""
    near = 2 * tolerance
    if temperature == 0.0:
        return bool(row[token_id] >= row.max() - near)
    probabilities = np.exp((row - row.max()) / temperature)
    probabilities /= probabilities.sum()
    surely_before = probabilities[row > row[token_id] + near].sum()
    perhaps_before = probabilities[row >= row[token_id] - near].sum()
    slack = near / temperature
    return bool(surely_before - slack <= uniform <= perhaps_before + slack)

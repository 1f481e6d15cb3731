"""From logits to tokens: penalties, temperature, top_k, top_p, min_p, one draw.

    repetition   l > 0: l / r, else l * r, for every token of prompt and answer (Keskar et al., arXiv 1909.05858)
    presence     l - p, once for every distinct token of the answer;  frequency  l - f * count
    top_k        the k likeliest; top_p  the fewest likeliest with at least that share of what top_k left
    min_p        those with at least that share of the likeliest one's probability
    draw         the first token, in order of descending probability, ties by lower id, whose cumulated share of what
                 is left exceeds the uniform of `philox`

Greedy rows take the lowest id among the maxima. The device only finds the likeliest CANDIDATES of each row; the draw
itself is done in float64 on the host, over all tokens of a row where the candidates don't settle it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polyfleet.engine.batch import Draw, SampledToken
from polyfleet.engine.philox import uniforms

CANDIDATES = 256
MIN_TEMPERATURE = 1e-30  # keeps a division finite; far below any effect
UNSETTLED = -1

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def sample(logits: Tensor, draws: Sequence[Draw]) -> list[SampledToken | None]:
    """One token per row of logits [S, V]; None for a row with a logit that is not finite. Rows don't affect another."""
    if not draws:
        return []
    logits = logits.float()
    low, high = torch.aminmax(logits, dim=-1)
    finite = low.isfinite() & high.isfinite()
    if all(draw.params.greedy and not draw.params.penalised and draw.num_logprobs is None for draw in draws):
        ids = torch.where(finite, logits.argmax(dim=-1), -1).tolist()
        return [SampledToken(token_id) if token_id >= 0 else None for token_id in ids]
    usable = [row for row, good in enumerate(finite.tolist()) if good]
    tokens: list[SampledToken | None] = [None] * len(draws)
    chosen = _choose(logits[usable], [draws[row] for row in usable]) if usable else []
    for row, token_id in zip(usable, chosen, strict=True):
        tokens[row] = _with_logprobs(logits[row], token_id, draws[row].num_logprobs)
    return tokens


def _choose(logits: Tensor, draws: Sequence[Draw]) -> list[int]:
    """Token ids of rows that are all finite."""
    for row, draw in enumerate(draws):
        if draw.params.penalised:
            logits[row] = _penalised(logits[row], draw)
    chosen: list[int] = logits.argmax(dim=-1).tolist()
    random = [row for row, draw in enumerate(draws) if not draw.params.greedy]
    if random:
        for row, token_id in zip(random, _draw(logits[random], [draws[row] for row in random]), strict=True):
            chosen[row] = token_id
    return chosen


def _penalised(row: Tensor, draw: Draw) -> Tensor:
    """One row of logits after the penalties."""
    params, row = draw.params, row.clone()
    if params.repetition_penalty != 1.0:
        seen = torch.tensor([*draw.prompt_ids, *draw.generated_ids], dtype=torch.int64, device=row.device)
        before = row[seen]
        row[seen] = torch.where(before > 0, before / params.repetition_penalty, before * params.repetition_penalty)
    if draw.generated_ids:
        generated = torch.tensor(list(draw.generated_ids), dtype=torch.int64, device=row.device)
        ids, counts = torch.unique(generated, return_counts=True)
        row[ids] -= params.presence_penalty + params.frequency_penalty * counts
    limits = torch.finfo(row.dtype)
    return row.clamp(limits.min, limits.max)


def _with_logprobs(row: Tensor, token_id: int, num_logprobs: int | None) -> SampledToken:
    """The token with logprobs of the model's own distribution."""
    if num_logprobs is None:
        return SampledToken(token_id)
    total = row.logsumexp(dim=-1)
    logprob = float(row[token_id] - total)
    if num_logprobs == 0:
        return SampledToken(token_id, logprob)
    least = row.topk(min(num_logprobs, len(row))).values[-1]
    ids = (row >= least).nonzero().flatten()
    ids = ids[row[ids].sort(descending=True, stable=True).indices[:num_logprobs]]
    return SampledToken(token_id, logprob, tuple(ids.tolist()), tuple((row[ids] - total).tolist()))


@dataclass(frozen=True, slots=True)
class _Filters:
    """Sampling parameters of n rows, as columns [n, 1]."""

    top_k: Ints  # the vocabulary's size when off
    top_p: Floats  # infinite when off
    min_p: Floats
    uniform: Floats

    @classmethod
    def of(cls, draws: Sequence[Draw], vocabulary: int) -> "_Filters":
        params = [draw.params for draw in draws]
        positions = [len(draw.prompt_ids) + len(draw.generated_ids) for draw in draws]
        return cls(
            np.array([[min(each.top_k or vocabulary, vocabulary)] for each in params]),
            np.array([[each.top_p if each.top_p < 1 else np.inf] for each in params]),
            np.array([[each.min_p] for each in params]),
            uniforms([each.seed for each in params], [draw.choice for draw in draws], positions)[:, None],
        )

    def take(self, rows: list[int]) -> "_Filters":
        return _Filters(self.top_k[rows], self.top_p[rows], self.min_p[rows], self.uniform[rows])


def _draw(logits: Tensor, draws: Sequence[Draw]) -> list[int]:
    """One draw per row of logits [n, V]."""
    vocabulary = logits.shape[-1]
    temperatures = [max(draw.params.temperature, MIN_TEMPERATURE) for draw in draws]
    scale = torch.tensor(temperatures, dtype=logits.dtype, device=logits.device)[:, None]
    scaled = (logits - logits.amax(dim=-1, keepdim=True)) / scale
    top, top_ids = scaled.topk(min(CANDIDATES, vocabulary))
    total = scaled.logsumexp(dim=-1, keepdim=True)
    filters = _Filters.of(draws, vocabulary)
    values, ids = _ranked(_host(top), top_ids.cpu().numpy())
    chosen = _pick(values - _host(total), ids, filters, vocabulary)
    unsettled = [row for row, token_id in enumerate(chosen) if token_id == UNSETTLED]
    if unsettled:
        values = _host(scaled[unsettled])
        values, ids = _ranked(values, np.broadcast_to(np.arange(vocabulary), values.shape))
        values = values - np.log(np.exp(values).sum(axis=-1, keepdims=True))
        for row, token_id in zip(unsettled, _pick(values, ids, filters.take(unsettled), vocabulary), strict=True):
            chosen[row] = token_id
    return chosen


def _host(tensor: Tensor) -> Floats:
    return tensor.cpu().numpy().astype(np.float64)


def _ranked(values: Floats, ids: Ints) -> tuple[Floats, Ints]:
    """Each row by descending value, ties by lower id."""
    order = np.lexsort((ids, -values), axis=-1)
    return np.take_along_axis(values, order, -1), np.take_along_axis(ids, order, -1)


def _pick(logprobs: Floats, ids: Ints, filters: _Filters, vocabulary: int) -> list[int]:
    """Filter and draw over the ranked candidates [n, c] of each row; UNSETTLED where it takes more than these.

    All filters keep a prefix of the ranking. Candidates that tie with the last one may lack a fellow of lower id, so
    only those before them are certain, unless they are the whole vocabulary.
    """
    width = logprobs.shape[-1]
    probabilities = np.exp(logprobs)
    cumulated = probabilities.cumsum(axis=-1)
    no_top_k = filters.top_k == vocabulary
    last_k = np.minimum(filters.top_k, width) - 1
    left_by_k = np.where(no_top_k, 1.0, np.take_along_axis(cumulated, last_k, -1))  # if top_k <= width
    kept = np.arange(width) < filters.top_k
    kept &= cumulated - probabilities < filters.top_p * left_by_k
    kept &= probabilities >= filters.min_p * probabilities[:, :1]
    num_kept = kept.sum(axis=-1, keepdims=True)

    whole = width == vocabulary
    certain = width if whole else (logprobs > logprobs[:, -1:]).sum(axis=-1, keepdims=True)
    no_top_p = np.isinf(filters.top_p)
    closed = (num_kept <= certain) & (whole | (num_kept < width)) & (no_top_k | no_top_p | (filters.top_k <= width))
    unfiltered = no_top_k & no_top_p & (filters.min_p == 0)
    mass = np.where(closed, np.take_along_axis(cumulated, num_kept - 1, -1), 1.0)
    index = (cumulated <= filters.uniform * mass).sum(axis=-1, keepdims=True)
    index = np.where(closed, np.minimum(index, num_kept - 1), index)
    settled = closed | (unfiltered & (index < certain))
    picked = np.take_along_axis(ids, np.minimum(index, width - 1), -1)
    return [int(token_id) for token_id in np.where(settled, picked, UNSETTLED)[:, 0]]

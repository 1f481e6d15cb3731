"""From logits to tokens: penalties, temperature, top_k, top_p, min_p, one draw.

    repetition   l > 0: l / r, else l * r, for every token of prompt and answer (Keskar et al., arXiv 1909.05858)
    presence     l - p, once for every distinct token of the answer;  frequency  l - f * count
    top_k        the k likeliest; top_p  the fewest likeliest with at least that share of what top_k left
    min_p        those with at least that share of the likeliest one's probability
    draw         the first token, in order of descending probability, ties by lower id, whose cumulated share of what
                 is left exceeds the uniform of `philox`

Greedy rows take the lowest id among the maxima. On an accelerator that computes in float64 draws are its own business
(see `device`). Elsewhere the likeliest candidates of each row are found first, and the draw is done in float64 on the
host; rows that the candidates don't settle are ranked whole (see `ranking`): the cost of a row
is bounded whatever its parameters.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from polyfleet.sampling import device
from polyfleet.sampling.candidates import UNSETTLED, Filters, Floats, ranked
from polyfleet.sampling.draw import Draw, SampledToken
from polyfleet.sampling.ranking import Ranking

CANDIDATES = 256  # of a row, among which most draws fall
COLUMNS = 16  # rows are searched for candidates by the maxima of so many tokens
MIN_TEMPERATURE = 1e-30  # keeps a division finite; far below any effect


def sample(logits: Tensor, draws: Sequence[Draw]) -> list[SampledToken | None]:
    """One token per row of logits [S, V]; None for a row with a logit that is not finite. Rows don't affect another."""
    if not draws:
        return []
    logits = logits.float()
    finite = (logits.amin(dim=-1).isfinite() & logits.amax(dim=-1).isfinite()).tolist()
    usable = [row for row, good in enumerate(finite) if good]
    tokens: list[SampledToken | None] = [None] * len(draws)
    chosen = _choose(_rows(logits, usable), [draws[row] for row in usable]) if usable else []
    for row, token_id in zip(usable, chosen, strict=True):
        tokens[row] = _with_logprobs(logits[row], token_id, draws[row].num_logprobs)
    return tokens


def _rows(logits: Tensor, rows: list[int]) -> Tensor:
    return logits if len(rows) == len(logits) else logits[rows]


def _choose(logits: Tensor, draws: Sequence[Draw]) -> list[int]:
    """Token ids of rows that are all finite."""
    penalised = [row for row, draw in enumerate(draws) if draw.params.penalised]
    if penalised:
        logits = logits.clone()
        for row in penalised:
            _penalise(logits[row], draws[row])
    greedy = [row for row, draw in enumerate(draws) if draw.params.greedy]
    random = [row for row, draw in enumerate(draws) if not draw.params.greedy]
    chosen = dict(zip(greedy, _argmax(_rows(logits, greedy)) if greedy else (), strict=True))
    if random:
        chosen.update(zip(random, _draw(_rows(logits, random), [draws[row] for row in random]), strict=True))
    return [chosen[row] for row in range(len(draws))]


def _argmax(logits: Tensor) -> list[int]:
    """The lowest id among the maxima of each row. On a host numpy finds it many times faster than torch."""
    if logits.device.type == "cpu":
        return [int(token_id) for token_id in logits.numpy().argmax(axis=-1)]
    ids: list[int] = logits.argmax(dim=-1).tolist()
    return ids


def _penalise(row: Tensor, draw: Draw) -> None:
    """Apply the penalties to one row of logits, in place."""
    params, counts, limits = draw.params, draw.counts, torch.finfo(row.dtype)
    if counts is None:
        raise ValueError("a draw with penalties needs the counts of its tokens")
    ids, generated = (torch.from_numpy(each).to(row.device) for each in (counts.ids, counts.generated))
    before = row[ids]
    scaled = torch.where(before > 0, before / params.repetition_penalty, before * params.repetition_penalty)
    scaled = scaled.clamp(limits.min, limits.max)
    row[ids] = scaled - (params.presence_penalty * (generated > 0) + params.frequency_penalty * generated)


def _with_logprobs(row: Tensor, token_id: int, num_logprobs: int | None) -> SampledToken:
    """The token with logprobs of the model's own distribution."""
    if num_logprobs is None:
        return SampledToken(token_id)
    total = float(row.amax()) + float(np.log(_mass(row[None], np.ones((1, 1)))).item())
    logprob = float(row[token_id]) - total
    if num_logprobs == 0:
        return SampledToken(token_id, logprob)
    least = row.topk(min(num_logprobs, len(row))).values[-1]
    ids = (row >= least).nonzero().flatten()
    ids = ids[row[ids].sort(descending=True, stable=True).indices[:num_logprobs]]
    return SampledToken(token_id, logprob, tuple(ids.tolist()), tuple((row[ids].double() - total).tolist()))


def _draw(logits: Tensor, draws: Sequence[Draw]) -> list[int]:
    """One draw per row of logits [n, V]."""
    filters = Filters.of(draws, logits.shape[-1], MIN_TEMPERATURE)
    if logits.device.type != "cpu" and device.can_draw(logits.device):
        return device.draw(logits, filters)
    chosen = _draw_among(min(CANDIDATES, logits.shape[-1]), logits, filters)
    for row, token_id in enumerate(chosen):
        if token_id == UNSETTLED:
            top_k, top_p, min_p, uniform = filters.of_row(row)
            ranking = Ranking(logits[row].cpu().numpy(), float(filters.temperature[row, 0]))
            chosen[row] = ranking.pick(top_k, top_p, min_p, uniform)
    return chosen


def _draw_among(width: int, logits: Tensor, filters: Filters) -> list[int]:
    """Draws among the `width` likeliest tokens of each row; UNSETTLED where these are too few."""
    highest, places = _likeliest(logits, width)
    values, ids = ranked(_host(highest), places.cpu().numpy())
    weights = np.exp((values - values[:, :1]) / filters.temperature)
    if width == logits.shape[-1]:
        mass = weights.sum(axis=-1, keepdims=True)
    elif filters.need_whole_mass(width):
        mass = _mass(logits, filters.temperature)
    else:
        mass = np.ones_like(filters.temperature)
    return filters.pick(weights, ids, mass)


def _mass(logits: Tensor, temperature: Floats) -> Floats:
    """Weight [n, 1] of all tokens of each row [n, V], where its likeliest has 1.

    On a host the same to the bit in any company: torch would share a row that is alone among threads.
    """
    scale = temperature.astype(np.float32)
    if logits.device.type == "cpu":
        values = logits.numpy()
        weights = np.exp((values - values.max(axis=-1, keepdims=True)) / scale)
        return np.stack([row.sum(keepdims=True) for row in weights]).astype(np.float64)
    shifted = logits - logits.amax(dim=-1, keepdim=True)
    return _host(shifted.div_(torch.from_numpy(scale).to(logits.device)).exp_().sum(dim=-1, keepdim=True))


def _likeliest(logits: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """The `width` highest logits of each row [n, V] and their ids, in any order; of equal ones at the end some.

    The highest all lie in those `width` groups of COLUMNS tokens whose maxima are the highest.
    """
    rows, vocabulary = logits.shape
    if vocabulary % COLUMNS or width * COLUMNS * 4 > vocabulary:
        return logits.topk(width, sorted=False)
    groups = logits.view(rows, COLUMNS, -1)
    best = groups.amax(dim=1).topk(width, sorted=False).indices[:, None].expand(-1, COLUMNS, -1)
    values, places = groups.gather(2, best).flatten(1).topk(width, sorted=False)
    offsets = torch.arange(COLUMNS, device=logits.device)[:, None] * groups.shape[2]
    return values, (best + offsets).flatten(1).gather(1, places)


def _host(tensor: Tensor) -> Floats:
    return tensor.cpu().numpy().astype(np.float64)

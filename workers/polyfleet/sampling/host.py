"""From logits to tokens: penalties, biases, masks, temperature, top_k, top_p, min_p, one draw.

    repetition   l > 0: l / r, else l * r, for every token of prompt and answer (Keskar et al., arXiv 1909.05858)
    presence     l - p, once for every distinct token of the answer;  frequency  l - f * count
    bias         l + b, for the tokens that a request names
    mask         tokens that may not be drawn have no probability, whatever the other parameters
    top_k        the k likeliest; top_p  the fewest likeliest with at least that share of what top_k left
    min_p        those with at least that share of the likeliest one's probability
    draw         the first token, in order of descending probability, ties by lower id, whose cumulated share of what
                 is left exceeds the uniform of `philox`

Greedy rows take the lowest id among the maxima. A device that computes in float64 has a program of its own (see
`device`). Here the likeliest candidates of each row are found first, where the logits lie, and the draw is done in
float64 on the host; rows that the candidates don't settle are ranked whole (see `ranking`): the cost of a row
is bounded whatever its parameters.
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polyfleet.sampling.arrays import Bools, Floats, Ints
from polyfleet.sampling.candidates import UNSETTLED, Filters, ranked
from polyfleet.sampling.counts import TokenCounts
from polyfleet.sampling.draw import Drawn, Draws, Logprobs, Start
from polyfleet.sampling.masks import Masks, members, size
from polyfleet.sampling.ranking import Ranking

CANDIDATES = 256  # of a row, among which most draws fall
COLUMNS = 16  # rows are searched for candidates by the maxima of so many tokens
Logits = NDArray[np.float32]
NO_COUNTS: Mapping[int, TokenCounts] = {}


class HostSampler:
    """Draws on the host, and keeps the counts of the slots whose draws are penalised."""

    def __init__(self) -> None:
        self._counts: dict[int, TokenCounts] = {}

    def start(self, starts: Iterable[Start]) -> None:
        """Sequences begin in these slots."""
        for start in starts:
            self._counts[start.slot] = TokenCounts(start.prompt_ids, start.generated_ids)

    def draw(self, logits: Tensor, draws: Draws, likeliest: Drawn | None = None) -> Drawn:
        """As `sample`; penalised slots count their tokens. ValueError: such a slot never started."""
        drawn = sample(logits, draws, self._counts, likeliest)
        counted = draws.penalised & drawn.finite
        if draws.behind is not None and counted.any():
            counted &= _accepted(draws, drawn.token_ids)
        for row in np.flatnonzero(counted):
            self._counts[int(draws.slots[row])].add(int(drawn.token_ids[row]))
        return drawn


def sample(
    logits: Tensor, draws: Draws, counts: Mapping[int, TokenCounts] = NO_COUNTS, likeliest: Drawn | None = None
) -> Drawn:
    """One token per row of logits [S, V]; rows don't affect another.

    Penalised rows need the `counts` of their slots, else ValueError. Where the `likeliest` token of each row is known,
    and whether it is finite, rows that ask for no more cost nothing.
    """
    if not len(draws):
        return Drawn(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=bool))
    logits = logits.float()
    if likeliest is None:
        finite = (logits.amin(dim=-1).isfinite() & logits.amax(dim=-1).isfinite()).cpu().numpy()
        likeliest = Drawn(_argmax(logits) if draws.greedy.any() else np.zeros(len(draws), dtype=np.int64), finite)
    token_ids, finite = np.where(likeliest.finite, likeliest.token_ids, 0), likeliest.finite
    changed = draws.penalised | draws.masked
    left = finite & changed
    if draws.masks is not None:
        left &= ~_draw_allowed(logits, draws, draws.masks, token_ids, left)
    rows = np.flatnonzero(left)
    if len(rows):
        token_ids[rows] = _choose_changed(_copied(logits, rows), draws.take(rows), counts)
    rows = np.flatnonzero(finite & ~changed & ~draws.greedy)
    if len(rows):
        token_ids[rows] = _draw(_rows(logits, rows), Filters.of(draws.take(rows), logits.shape[-1]))
    return Drawn(token_ids, finite, _logprobs(logits, token_ids, finite, draws))


def _draw_allowed(logits: Tensor, draws: Draws, masks: Masks, token_ids: Ints, wanted: Bools) -> Bools:
    """Draw those wanted rows that a set of tokens settles without a look at the others; which they are [S].

    That is, where the likeliest token, which `token_ids` has of greedy rows, is in it, or few tokens are.
    """
    greedy, plain = draws.greedy, wanted & ~draws.penalised
    plain[masks.biased_rows] = False
    done, few = np.zeros(len(draws), dtype=bool), dict[int, Ints]()
    done[masks.rows] = (plain & greedy)[masks.rows] & masks.allow(token_ids)
    for place in np.flatnonzero((plain & ~done)[masks.rows]):
        if size(masks.bits[place]) <= CANDIDATES:
            few[int(masks.rows[place])] = members(masks.bits[place], logits.shape[-1])
    rows = np.array(list(few), dtype=np.int64)
    if len(rows):
        token_ids[rows] = _choose_few(logits, draws.take(rows), rows, list(few.values()))
        done[rows] = True
    return done


def _choose_few(logits: Tensor, draws: Draws, rows: Ints, allowed: Sequence[Ints]) -> Ints:
    """Token ids of `rows`, each of which may take these tokens: CANDIDATES at most, as each is drawn among so many."""
    ids = np.zeros((len(rows), CANDIDATES), dtype=np.int64)
    values = np.full((len(rows), CANDIDATES), -np.inf, dtype=np.float32)
    known = logits.numpy() if logits.device.type == "cpu" else _copied(logits, rows)
    at = rows.tolist() if logits.device.type == "cpu" else range(len(rows))
    for index, (row, of_row) in enumerate(zip(at, allowed, strict=True)):
        ids[index, : len(of_row)], values[index, : len(of_row)] = of_row, known[row, of_row]
    places = values.argmax(-1)
    if not draws.greedy.all():
        sizes = np.array([len(of_row) for of_row in allowed])
        drawn = _draw(torch.from_numpy(values), Filters.of(draws, logits.shape[-1], sizes))
        places = np.where(draws.greedy, places, drawn)
    chosen: Ints = np.take_along_axis(ids, places[:, None], -1)[:, 0]
    return chosen


def _rows(logits: Tensor, rows: Ints) -> Tensor:
    if len(rows) == len(logits):
        return logits
    on_host = logits.device.type == "cpu"
    return torch.from_numpy(_copied(logits, rows)) if on_host else logits[torch.from_numpy(rows).to(logits.device)]


def _copied(logits: Tensor, rows: Ints) -> Logits:
    """A copy of these rows on the host, where numpy adjusts them: torch would wake its threads for a single one."""
    if logits.device.type == "cpu":
        copy: Logits = logits.numpy()[rows]
        return copy
    return np.array(logits[torch.from_numpy(rows).to(logits.device)].cpu().numpy())


def _choose_changed(logits: Logits, draws: Draws, counts: Mapping[int, TokenCounts]) -> Ints:
    """Token ids of rows [n, V] that are all finite, and all penalised or masked; changes them."""
    if draws.penalised.any():
        _penalise_all(logits, draws, counts)
    if draws.masks is not None:
        _bar(logits, draws.masks)
    if draws.greedy.all():
        likeliest: Ints = logits.argmax(-1)
        return likeliest
    num_allowed = np.array([np.count_nonzero(row > -np.inf) for row in logits])
    drawn = _draw(torch.from_numpy(logits), Filters.of(draws, logits.shape[-1], num_allowed))
    return np.where(draws.greedy, logits.argmax(-1), drawn) if draws.greedy.any() else drawn


def _follows(draws: Draws, row: int) -> bool:
    """Whether a row is a draft's: its slot draws in the row before, too."""
    return draws.behind is not None and row > 0 and bool(draws.slots[row] == draws.slots[row - 1])


def _accepted(draws: Draws, token_ids: Ints) -> Bools:
    """[S] the rows that count: behind drafts that all are what was drawn."""
    accepted = np.ones(len(draws), dtype=bool)
    for row in range(len(draws)):
        if _follows(draws, row):
            accepted[row] = accepted[row - 1] and token_ids[row - 1] == draws.behind[row]  # type: ignore[index]
    return accepted


def _penalise_all(logits: Logits, draws: Draws, counts: Mapping[int, TokenCounts]) -> None:
    """Apply the penalties of rows [n, V], in place; those of drafts count the drafts up to them, too."""
    drafts: list[tuple[TokenCounts, int]] = []
    for row, penalised in enumerate(draws.penalised.tolist()):
        known = counts.get(int(draws.slots[row]))
        if not _follows(draws, row):
            _forget(drafts)
        elif penalised and known is not None and draws.behind is not None:
            drafts.append((known, int(draws.behind[row])))
            known.add(drafts[-1][1])
        if penalised:
            _penalise(logits[row], draws, row, known)
    _forget(drafts)


def _forget(drafts: list[tuple[TokenCounts, int]]) -> None:
    """Drafts are not tokens yet."""
    while drafts:
        counts, token_id = drafts.pop()
        counts.remove(token_id)


def _argmax(logits: Tensor) -> Ints:
    """The lowest id among the maxima of each row. On a host numpy finds it many times faster than torch."""
    ids: Ints = logits.numpy().argmax(-1) if logits.device.type == "cpu" else logits.argmax(dim=-1).cpu().numpy()
    return ids


def _penalise(values: Logits, draws: Draws, row: int, known: TokenCounts | None) -> None:
    """Apply the penalties of one row to its logits [V], in place."""
    params, limits = draws.parameters[row], np.finfo(np.float32)
    if known is None:
        raise ValueError("a draw with penalties needs the counts of its tokens")
    ids, answer = known.ids, known.answer
    repetition, presence, frequency = (
        np.float32(params[name]) for name in ("repetition_penalty", "presence_penalty", "frequency_penalty")
    )
    if repetition != 1:
        before = values[ids]
        nearer = np.minimum if repetition > 1 else np.maximum  # of both, whatever the sign, and without a branch
        with np.errstate(over="ignore"):
            values[ids] = nearer(before / repetition, before * repetition).clip(limits.min, limits.max)
    values[ids[answer]] -= presence + frequency * known.generated[answer].astype(np.float32)


def _bar(logits: Logits, masks: Masks) -> None:
    """Bias rows [n, V], and bar what they may not take, in place."""
    for row, ceiling in zip(masks.rows.tolist(), masks.ceilings(logits.shape[-1]), strict=True):
        np.minimum(logits[row], ceiling, out=logits[row])
    logits[masks.biased_rows, masks.biased_ids] += masks.biases


def _logprobs(logits: Tensor, token_ids: Ints, finite: Bools, draws: Draws) -> Logprobs | None:
    """Of the model's own distribution, for the rows that want them."""
    wanted = draws.with_logprobs
    if not wanted.any():
        return None
    rows, vocabulary = len(draws), logits.shape[-1]
    width = min(int(draws.parameters["num_logprobs"].max()), vocabulary)
    out = Logprobs(np.zeros(rows), np.zeros((rows, width), dtype=np.int64), np.zeros((rows, width)))
    told = np.flatnonzero(wanted & finite)
    for row, values in zip(told.tolist(), _copied(logits, told), strict=True):
        total = float(values.max()) + float(np.log(_mass(torch.from_numpy(values[None]), np.ones((1, 1)))).item())
        number = min(int(draws.parameters["num_logprobs"][row]), vocabulary)
        ids = _top(values, number)
        out.drawn[row] = float(values[token_ids[row]]) - total
        out.top_ids[row, :number] = ids
        out.top[row, :number] = values[ids].astype(np.float64) - total
    return out


def _top(values: Logits, number: int) -> Ints:
    """The ids of the highest of one row [V], ties by lower id.

    By numpy: torch would share a row among its threads, which costs more than it saves beside those of a model.
    """
    if not number:
        return np.zeros(0, dtype=np.int64)
    least = np.partition(values, len(values) - number)[len(values) - number]
    ids = np.flatnonzero(values >= least)
    return ids[np.argsort(-values[ids], kind="stable")[:number]]


def _draw(logits: Tensor, filters: Filters) -> Ints:
    """One draw per row of logits [n, V]."""
    chosen = _draw_among(min(CANDIDATES, logits.shape[-1]), logits, filters)
    for row in np.flatnonzero(chosen == UNSETTLED).tolist():
        top_k, top_p, min_p, uniform = filters.of_row(row)
        ranking = Ranking(logits[row].cpu().numpy(), float(filters.temperature[row, 0]))
        chosen[row] = ranking.pick(top_k, top_p, min_p, uniform)
    return chosen


def _draw_among(width: int, logits: Tensor, filters: Filters) -> Ints:
    """Draws among the `width` likeliest tokens of each row; UNSETTLED where these are too few."""
    highest, places = _likeliest(logits, width)
    values, ids = ranked(_host(highest), places.cpu().numpy())
    weights = np.exp((values - values[:, :1]) / filters.temperature)
    needed = filters.need_whole_mass(width)
    return filters.pick(weights, ids, _mass(logits, filters.temperature) if needed else np.ones_like(weights[:, :1]))


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

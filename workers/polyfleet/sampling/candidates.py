"""top_k, top_p, min_p and the draw over the likeliest candidates of many rows at once, in float64 on the host."""

from dataclasses import dataclass

import numpy as np

from polyfleet.sampling.arrays import Floats, Ints
from polyfleet.sampling.draw import Draws
from polyfleet.sampling.philox import uniforms

UNSETTLED = -1
MIN_TEMPERATURE = 1e-30  # keeps a division finite; far below any effect


@dataclass(frozen=True, slots=True)
class Filters:
    """Sampling parameters of n rows, as columns [n, 1]."""

    temperature: Floats
    top_k: Ints  # `allowed` when off
    top_p: Floats  # infinite when off
    min_p: Floats
    uniform: Floats
    allowed: Ints  # how many tokens may be drawn

    @classmethod
    def of(cls, draws: Draws, vocabulary: int, num_allowed: Ints | None = None) -> "Filters":
        """The parameters of these draws, each with its uniform; tokens that may be drawn [n] are all by default."""
        columns = draws.parameters[:, None]
        allowed = np.full((len(draws), 1), vocabulary) if num_allowed is None else num_allowed[:, None]
        top_k, top_p = columns["top_k"], columns["top_p"]
        return cls(
            temperature=np.maximum(columns["temperature"], MIN_TEMPERATURE),
            top_k=np.minimum(np.where(top_k == 0, vocabulary, top_k), allowed),
            top_p=np.where(top_p < 1, top_p, np.inf),
            min_p=columns["min_p"],
            uniform=uniforms(draws.parameters["seed"], draws.parameters["choice"], draws.positions)[:, None],
            allowed=allowed,
        )

    def of_row(self, row: int) -> tuple[int, float, float, float]:
        """top_k, top_p, min_p and the uniform of one row."""
        return (
            int(self.top_k[row, 0]),
            float(self.top_p[row, 0]),
            float(self.min_p[row, 0]),
            float(self.uniform[row, 0]),
        )

    def need_whole_mass(self, width: int) -> bool:
        """Whether any row must know the probability of tokens beyond its `width` likeliest."""
        return bool((self.top_k > width).any())

    def pick(self, weights: Floats, ids: Ints, whole_mass: Floats) -> Ints:
        """Filter and draw; UNSETTLED for rows that it takes more than these candidates for.

        `weights` [n, c] are proportional to the probabilities of the candidates `ids`, by descending weight, ties by
        id; `whole_mass` [n, 1] is the weight of all tokens, of no meaning for rows with top_k <= c.
        All filters keep a prefix of the ranking. Candidates that tie with the last one may lack a fellow of lower id:
        only those before them are certain, unless they are all that may be drawn.
        """
        width = weights.shape[-1]
        whole = self.allowed <= width
        no_top_k, no_top_p = self.top_k == self.allowed, np.isinf(self.top_p)
        cumulated = weights.cumsum(axis=-1)
        last_k = np.minimum(self.top_k, width) - 1
        left_by_k = np.where(self.top_k > width, whole_mass, np.take_along_axis(cumulated, last_k, -1))
        kept = np.arange(width) < self.top_k
        kept &= cumulated - weights < self.top_p * left_by_k
        kept &= weights >= self.min_p * weights[:, :1]
        num_kept = kept.sum(axis=-1, keepdims=True)

        certain = np.where(whole, self.allowed, (weights > weights[:, -1:]).sum(axis=-1, keepdims=True))
        closed = (num_kept <= certain) & (whole | (num_kept < width)) & (no_top_k | no_top_p | (self.top_k <= width))
        mass = np.where(closed, np.take_along_axis(cumulated, num_kept - 1, -1), whole_mass)
        index = (cumulated <= self.uniform * mass).sum(axis=-1, keepdims=True)
        index = np.where(closed, np.minimum(index, num_kept - 1), index)
        unfiltered = no_top_k & no_top_p & (self.min_p == 0)
        settled = closed | (unfiltered & (index < certain))
        picked = np.take_along_axis(ids, np.minimum(index, width - 1), -1)
        chosen: Ints = np.where(settled, picked, UNSETTLED)[:, 0]
        return chosen


def ranked(values: Floats, ids: Ints) -> tuple[Floats, Ints]:
    """Each row by descending value, ties by lower id."""
    order = np.lexsort((ids, -values), axis=-1)
    return np.take_along_axis(values, order, -1), np.take_along_axis(ids, order, -1)

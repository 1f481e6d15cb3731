"""One row's tokens by descending logit, ties by lower id: what a draw falls back on that few candidates don't settle.

Only values are sorted, which vector instructions do in a fraction of the time that sorting ids takes; the id of the
one place that was drawn is looked up behind. The cost of a row is bounded by its vocabulary, whatever the parameters.
"""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

BLOCK = 512  # weights that are summed at once; cumulated sums are only taken within the one block that a search hits


class Ranking:
    """Of one row of finite float32 logits [V] at a temperature. Weights are proportional to probabilities."""

    def __init__(self, logits: NDArray[np.float32], temperature: float) -> None:
        self._logits = logits
        self._negated = np.sort(-logits)
        with np.errstate(over="ignore"):  # to minus infinity, whose weight is 0
            self._weights = np.exp((self._negated[0] - self._negated) / np.float32(temperature))
        starts = np.arange(0, len(logits), BLOCK)
        sums = np.add.reduceat(self._weights, starts, dtype=np.float64)
        self._masses = np.concatenate(([0.0], sums.cumsum()))  # of the blocks before each, and of all

    def pick(self, top_k: int, top_p: float, min_p: float, uniform: float) -> int:
        """The token drawn by `uniform` among those that the filters leave (`top_p` infinite: off)."""
        kept = min(top_k, len(self._weights))
        mass = self._mass(kept)
        if top_p < 1:
            kept = min(kept, self._place(top_p * mass, "left") + 1)
        if min_p > 0:  # the likeliest one's weight is 1
            kept = min(kept, len(self._weights) - int(np.searchsorted(self._weights[::-1], np.float32(min_p))))
        place = self._place(uniform * self._mass(kept), "right")
        return self._token(min(place, kept - 1))

    def _mass(self, count: int) -> float:
        """Weight of the first `count` tokens."""
        block = count // BLOCK
        return float(self._masses[block] + self._weights[block * BLOCK : count].sum(dtype=np.float64))

    def _place(self, mass: float, side: Literal["left", "right"]) -> int:
        """The first token whose cumulated mass reaches (left) or exceeds (right) `mass`."""
        block = int(np.searchsorted(self._masses[1:-1], mass, side))
        cumulated = self._masses[block] + self._weights[block * BLOCK :][:BLOCK].cumsum(dtype=np.float64)
        return block * BLOCK + int(np.searchsorted(cumulated, mass, side))

    def _token(self, place: int) -> int:
        """The id at a place; equal logits stand in order of their ids."""
        negated = self._negated[place]
        ids = np.flatnonzero(self._logits == -negated)
        return int(ids[place - np.searchsorted(self._negated, negated)])

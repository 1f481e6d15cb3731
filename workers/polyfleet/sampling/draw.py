"""What is asked of rows of logits, and what comes back: plain arrays, one entry a row."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyfleet.sampling.arrays import Bools, Floats, Ints
from polyfleet.sampling.masks import Masks
from polyfleet.wire.sampling import SamplingParams

NO_LOGPROBS = -1
LEAST_REPETITION = float(np.finfo(np.float32).tiny)  # float32 logits are divided by it: less would be 0 there

# How one sequence's tokens are drawn: SamplingParams as numbers. An array of these is indexed by slot, or by draw.
PARAMETERS = np.dtype(
    [
        ("temperature", np.float64),
        ("top_p", np.float64),
        ("min_p", np.float64),
        ("repetition_penalty", np.float64),
        ("presence_penalty", np.float64),
        ("frequency_penalty", np.float64),
        ("top_k", np.int64),  # 0: off
        ("seed", np.uint64),
        ("choice", np.int64),
        ("num_logprobs", np.int64),  # alternatives reported beside a token; NO_LOGPROBS: no logprobs at all
    ]
)
Parameters = NDArray[Any]  # of dtype PARAMETERS


def parameters(params: SamplingParams, choice: int = 0, num_logprobs: int | None = None) -> tuple[float, ...]:
    """One entry of an array of PARAMETERS."""
    return (
        *(params.temperature, params.top_p, params.min_p),
        *(max(params.repetition_penalty, LEAST_REPETITION), params.presence_penalty, params.frequency_penalty),
        *(min(params.top_k, 2**62), params.seed, choice, NO_LOGPROBS if num_logprobs is None else num_logprobs),
    )


@dataclass(frozen=True, slots=True)
class Start:
    """A sequence that begins in a slot and whose draws are penalised: its tokens, cached beginnings included."""

    slot: int
    prompt_ids: Sequence[int]
    generated_ids: Sequence[int]


@dataclass(frozen=True, slots=True)
class Draws:
    """The tokens wanted of S rows of logits: row s belongs to the sequence in `slots[s]`."""

    parameters: Parameters  # [S]
    slots: Ints  # [S]
    positions: Ints  # [S] tokens before the one wanted, prompt and generated together
    masks: Masks | None = None  # None: every row may take every token as it is
    behind: Ints | None = None  # [S] the token of each row, where some slot draws behind drafts: rows side by side

    def __len__(self) -> int:
        return len(self.slots)

    @property
    def greedy(self) -> Bools:
        """[S] rows whose likeliest token is taken without a draw."""
        greedy: Bools = self.parameters["temperature"] == 0
        return greedy

    @property
    def penalised(self) -> Bools:
        """[S] rows that depend on the tokens so far."""
        columns = self.parameters
        repeated, present = columns["repetition_penalty"] != 1, columns["presence_penalty"] != 0
        penalised: Bools = repeated | present | (columns["frequency_penalty"] != 0)
        return penalised

    @property
    def masked(self) -> Bools:
        """[S] rows in which some token may not be drawn, or has a bias."""
        return np.zeros(len(self), dtype=bool) if self.masks is None else self.masks.touched(len(self))

    @property
    def with_logprobs(self) -> Bools:
        """[S] rows whose logprobs are reported."""
        wanted: Bools = self.parameters["num_logprobs"] != NO_LOGPROBS
        return wanted

    def take(self, rows: Ints) -> "Draws":
        """What is asked of these rows alone, which ascend."""
        masks = None if self.masks is None else self.masks.take(rows)
        behind = None if self.behind is None else self.behind[rows]
        return Draws(self.parameters[rows], self.slots[rows], self.positions[rows], masks, behind)


@dataclass(frozen=True, slots=True)
class Logprobs:
    """Natural logs of the model's own distribution, before penalties, biases, masks and temperature.

    K is the most alternatives asked for. Of those of row s the first `num_logprobs` that were asked for count.
    """

    drawn: Floats  # [S]
    top_ids: Ints  # [S, K] likeliest first, ties by lower id
    top: Floats  # [S, K]

    def spread(self, rows: Ints, count: int) -> "Logprobs":
        """The same as these rows of so many; the others are 0."""
        wide = [np.zeros((count, *each.shape[1:]), dtype=each.dtype) for each in (self.drawn, self.top_ids, self.top)]
        for into, each in zip(wide, (self.drawn, self.top_ids, self.top), strict=True):
            into[rows] = each
        return Logprobs(*wide)


@dataclass(frozen=True, slots=True)
class Drawn:
    """What S rows came to."""

    token_ids: Ints  # [S]; some valid id in rows that are not finite
    finite: Bools  # [S] whether all logits of the row were
    logprobs: Logprobs | None = None  # where any row wants some

    def take(self, rows: Ints) -> "Drawn":
        """What these rows alone came to, without logprobs."""
        return Drawn(self.token_ids[rows], self.finite[rows])

    def put(self, rows: Ints, other: "Drawn") -> "Drawn":
        """The same with what `other` says of these rows, and its logprobs."""
        token_ids, finite = self.token_ids.copy(), self.finite.copy()
        token_ids[rows], finite[rows] = other.token_ids, other.finite
        if other.logprobs is None:
            return Drawn(token_ids, finite)
        logprobs = other.logprobs.spread(rows, len(token_ids))
        return Drawn(token_ids, finite, logprobs)

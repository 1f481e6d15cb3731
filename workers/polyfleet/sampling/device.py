"""The draw on a device that computes in float64: one plain-torch program, and nothing in it waits for the device.

The definition is `host`'s, and so is the result, but for draws that lie within rounding of an edge of the distribution.
Weights are summed as integers, in which the order of summing makes no difference: a row has the same token and
logprobs in any company, on any device. Which rows take which steps depends on their parameters alone.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polyfleet.kernels.step import upload
from polyfleet.sampling.arrays import Bools, Int32s, Ints
from polyfleet.sampling.candidates import Filters
from polyfleet.sampling.device_counts import DeviceCounts
from polyfleet.sampling.draw import Drawn, Draws, Logprobs, Start
from polyfleet.sampling.masks import BIT_OF_WORD, Masks

LOGITS = 2**24  # ranked at once, by rows: bounds the memory it takes to about 40 bytes for each
ID_BITS = 32  # of the keys that rank logits and, where these are equal, ids


@lru_cache
def can_draw(device: torch.device) -> bool:
    """Whether the device computes in float64, which a cumulated distribution over many tokens needs."""
    try:
        return float(torch.ones(2, dtype=torch.float64, device=device).sum()) == 2.0
    except (RuntimeError, TypeError):
        return False


@dataclass(frozen=True, slots=True)
class DeviceDrawn:
    """What S rows came to, as tensors on the device: `Drawn` and `Logprobs` say more."""

    token_ids: Tensor  # [S] int64
    finite: Tensor  # [S] bool
    drawn: Tensor | None = None  # [S] float64 logprobs, where any row wants some
    top_ids: Tensor | None = None  # [S, K] int64
    top: Tensor | None = None  # [S, K] float64

    def staged(self) -> "DeviceDrawn":
        """The same on the host, once the device's work so far is done; does not wait for it."""
        tensors = (self.token_ids, self.finite, self.drawn, self.top_ids, self.top)
        return DeviceDrawn(*(each if each is None else each.to("cpu", non_blocking=True) for each in tensors))  # type: ignore[arg-type]

    def to_host(self) -> Drawn:
        """The same as arrays; waits for tensors that are still on the device."""
        logprobs = None
        if self.drawn is not None and self.top_ids is not None and self.top is not None:
            logprobs = Logprobs(_array(self.drawn), _array(self.top_ids), _array(self.top))
        return Drawn(_array(self.token_ids), _array(self.finite), logprobs)


class Masking(Protocol):
    """Kernels of a device that know sets of tokens: `bits` [M, words] of the ascending `masked` rows [M]."""

    def likeliest(self, logits: Tensor, masked: Ints, bits: Int32s) -> tuple[Tensor, Tensor]:
        """Of logits [S, V] the likeliest token that each row may take [S], and whether all of them are finite [S]."""
        ...

    def bar(self, values: Tensor, masked: Ints, bits: Int32s) -> None:
        """Make minus infinity of logits [S, V], in place, what rows may not take."""
        ...


class DeviceSampler:
    """Draws on the device, and keeps there the counts of the slots whose draws are penalised."""

    def __init__(self, device: torch.device, vocabulary: int, masking: Masking | None = None) -> None:
        """`masking`: the device's own, where it has some."""
        self._device = device
        self._masking = masking
        self._vocabulary = vocabulary
        self._counts = DeviceCounts(device, vocabulary)
        self._scale = 2.0 ** (62 - vocabulary.bit_length())  # of weights as integers: no sum of a row overflows

    def start(self, starts: Iterable[Start]) -> None:
        """Sequences begin in these slots."""
        for start in starts:
            self._counts.start(start)

    def draw(self, logits: Tensor, draws: Draws) -> DeviceDrawn:
        """One token per row of logits [S, V] on the device; penalised slots count theirs.

        Raises ValueError for a penalised slot that was never started.
        """
        greedy, penalised, masked = draws.greedy, draws.penalised, draws.masked
        masks, kernels = draws.masks, self._masking
        if kernels and masks is not None and not len(masks.biased_rows) and greedy.all() and not penalised.any():
            token_ids, finite = kernels.likeliest(logits, masks.rows, masks.bits)
            return DeviceDrawn(token_ids, finite, *self._logprobs(logits, token_ids, draws))
        token_ids = logits.argmax(dim=-1)  # the lowest id among the maxima
        lowest, highest = logits.aminmax(dim=-1)
        finite = lowest.mul_(0) == highest.mul_(0)  # of infinities and NaN that is NaN
        for rows in self._parts(greedy & (penalised | masked)):
            values, _ = self._adjusted(logits, rows, draws, penalised, masked)
            token_ids[self._places(rows)] = values.argmax(dim=-1)
        if not greedy.all():
            filters = Filters.of(replace(draws, masks=None), logits.shape[-1])
            floats = (filters.temperature, filters.top_p, filters.min_p, filters.uniform)
            columns = self._moved(np.stack((*(each.view(np.int64) for each in floats), filters.top_k - 1)))
            for rows in self._parts(~greedy):
                values, barred = self._adjusted(logits, rows, draws, penalised, masked)
                barred = barred or bool(filters.min_p[rows].any())
                by_mass, places = not np.isinf(filters.top_p[rows]).all(), self._places(rows)
                token_ids[places] = self._random(values, columns[:, places], barred, by_mass)
        if penalised.any():
            rows = np.flatnonzero(penalised)
            places = self._moved(rows)
            self._counts.add(draws.slots[rows], token_ids.index_select(0, places), finite.index_select(0, places))
        return DeviceDrawn(token_ids, finite, *self._logprobs(logits, token_ids, draws))

    def _moved(self, array: NDArray[Any]) -> Tensor:
        return upload(array, self._device)

    def _places(self, rows: Ints) -> slice | Tensor:
        """An index of these ascending rows, which launches nothing where they lie side by side."""
        first, end = int(rows[0]), int(rows[-1]) + 1
        return slice(first, end) if end - first == len(rows) else self._moved(rows)

    def _parts(self, chosen: Bools) -> Iterator[Ints]:
        """The chosen rows, as many at a time as there is memory for."""
        rows = np.flatnonzero(chosen)
        most = max(1, LOGITS // self._vocabulary)
        for start in range(0, len(rows), most):
            yield rows[start : start + most]

    def _adjusted(
        self, logits: Tensor, rows: Ints, draws: Draws, penalised: Bools, masked: Bools
    ) -> tuple[Tensor, bool]:
        """The logits of these rows behind penalties and masks, and whether some are barred, which then are -inf."""
        values = logits[self._places(rows)]
        changed, barred = penalised[rows], masked[rows]
        if changed.any() or (draws.masks is not None and len(draws.masks.biased_rows)):
            values = values.to(torch.float32, copy=True)
        elif barred.any():
            values = values.clone()
        if changed.any():
            plain = Draws(draws.parameters, draws.slots, draws.positions)
            self._counts.penalise(values, self._moved(np.flatnonzero(changed)), plain.take(rows[changed]))
        if draws.masks is not None and barred.any():
            self._bar(values, draws.masks.take(rows))
        return values, bool(barred.any())

    def _bar(self, values: Tensor, masks: Masks) -> None:
        """Add biases to rows of logits [n, V], float32 if any, in place; make minus infinity what they may not take."""
        if len(masks.rows) and self._masking:
            self._masking.bar(values, masks.rows, masks.bits)
        elif len(masks.rows):
            rows, bits = self._moved(masks.rows), self._moved(masks.bits)
            missing = (bits[..., None] & self._moved(BIT_OF_WORD) == 0).flatten(1)[:, : values.shape[1]]
            values.index_copy_(0, rows, values.index_select(0, rows).masked_fill_(missing, -torch.inf))
        if len(masks.biased_rows):
            places = self._moved(masks.biased_rows), self._moved(masks.biased_ids)
            values.index_put_(places, values[places] + self._moved(masks.biases))

    def _random(self, logits: Tensor, columns: Tensor, barred: bool, by_mass: bool) -> Tensor:
        """One draw per row of logits [n, V]; ids [n].

        `columns` [5, n, 1] are temperature, top_p, min_p and uniform as the bits of float64, and the place of the last
        token that top_k keeps. Tokens are `barred` by min_p or logits of -inf, and cut `by_mass` by top_p, or are not.
        """
        temperature, top_p, min_p, uniform = columns[:4].view(torch.float64)
        last = columns[4]  # place in the ranking of the last token that is kept
        values, ids = logits.sort(dim=-1, descending=True, stable=True)  # equal ones stay in order of their ids
        shares = torch.sub(values, values[:, :1].double()).div_(temperature).exp_()
        last_by_min = last
        if barred:
            kept = ((shares >= min_p) & (values > -torch.inf)).sum(dim=-1, keepdim=True)
            last_by_min = torch.minimum(last, kept.sub_(1).clamp_(min=0))
        cumulated = shares.mul_(self._scale).round_().long().cumsum_(dim=-1)
        if by_mass:  # kept are tokens before which less than `limit` is cumulated
            limit = (top_p * cumulated.gather(1, last)).clamp_(max=2.0**62).ceil_().long()
            last = torch.searchsorted(cumulated, limit)
        last = torch.minimum(last, last_by_min)
        target = (uniform * cumulated.gather(1, last)).long()
        place = torch.searchsorted(cumulated, target, right=True)
        return ids.gather(1, torch.minimum(place, last))[:, 0]

    def _logprobs(self, logits: Tensor, token_ids: Tensor, draws: Draws) -> tuple[Tensor, ...]:
        """Logprobs [S] of what was drawn, alternatives [S, K] and theirs; nothing where no row wants any."""
        wanted = draws.with_logprobs
        if not wanted.any():
            return ()
        rows, vocabulary = logits.shape
        number = min(int(draws.parameters["num_logprobs"].max()), vocabulary)
        drawn = torch.zeros(rows, dtype=torch.float64, device=self._device)
        top_ids = torch.zeros((rows, number), dtype=torch.int64, device=self._device)
        top = torch.zeros((rows, number), dtype=torch.float64, device=self._device)
        for part in self._parts(wanted):
            places = self._moved(part)
            values = logits.index_select(0, places).float()
            total = self._total(values)
            ids = likeliest(values, number)
            chosen = values.gather(1, token_ids.index_select(0, places)[:, None])
            drawn.index_copy_(0, places, (chosen.double() - total)[:, 0])
            top_ids.index_copy_(0, places, ids)
            top.index_copy_(0, places, values.gather(1, ids).double() - total)
        return drawn, top_ids, top

    def _total(self, values: Tensor) -> Tensor:
        """The log of the summed exponentials of each row [n, V]; [n, 1]."""
        highest = values.amax(dim=-1, keepdim=True).double()
        weights = values.double().sub_(highest).exp_().mul_(self._scale).round_().long()
        return highest + (weights.sum(dim=-1, keepdim=True).double() / self._scale).log()


def likeliest(values: Tensor, number: int) -> Tensor:
    """Ids [n, number] of the highest of each row of float32 [n, V], in descending order, ties by lower id."""
    bits = (values + 0.0).view(torch.int32).long()  # + 0.0: zeros of both signs are equal
    ordered = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)  # as integers they rank as the floats do
    last = values.shape[-1] - 1
    keys = (ordered << ID_BITS) + torch.arange(last, -1, -1, device=values.device)
    ids: Tensor = last - (keys.topk(number).values & (2**ID_BITS - 1))
    return ids


def _array(tensor: Tensor) -> NDArray[Any]:
    array: NDArray[Any] = tensor.cpu().numpy().copy()  # where it lies on the host the next step's may come
    return array

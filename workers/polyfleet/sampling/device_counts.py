"""Counts for penalties on a device, for the slots that need them: the draw updates them without the host's help."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polyfleet.kernels.step import upload
from polyfleet.sampling.arrays import Ints
from polyfleet.sampling.draw import Draws, Start

PROMPT, GENERATED = 1, 2  # what a token's first occurrence in a prompt and each in an answer add to its count


class DeviceCounts:
    """A table [P, V] int32 with one row per penalised slot, doubled when it is full; rows stay with their slots."""

    def __init__(self, device: torch.device, vocabulary: int) -> None:
        self._table = torch.zeros((0, vocabulary), dtype=torch.int32, device=device)
        self._places: dict[int, int] = {}

    def start(self, start: Start) -> None:
        """A sequence begins in a slot."""
        place = self._places.setdefault(start.slot, len(self._places))
        if place == len(self._table):
            self._grow()
        counts = self._table[place].zero_()
        prompt, generated = (self._moved(np.asarray(ids, np.int64)) for ids in (start.prompt_ids, start.generated_ids))
        counts.index_fill_(0, prompt, PROMPT)
        counts.scatter_add_(0, generated, torch.full_like(generated, GENERATED, dtype=torch.int32))

    def add(self, slots: Ints, token_ids: Tensor, counted: Tensor) -> None:
        """One more token [n] of each slot's answer, where `counted` [n]."""
        places = self._moved(self._rows(slots)) * self._table.shape[1] + token_ids
        self._table.view(-1).scatter_add_(0, places, counted.int() * GENERATED)

    def penalise(self, logits: Tensor, places: Tensor, draws: Draws) -> None:
        """Apply penalties to the rows `places` of float32 logits, in place."""
        names = ("repetition_penalty", "presence_penalty", "frequency_penalty")
        columns = np.stack([draws.parameters[name].astype(np.float32) for name in names])
        repetition, presence, frequency = self._moved(columns)[..., None]
        counts = self._table.index_select(0, self._moved(self._rows(draws.slots)))
        generated, before, limits = counts >> 1, logits.index_select(0, places), torch.finfo(logits.dtype)
        scaled = torch.where(before > 0, before / repetition, before * repetition).clamp_(limits.min, limits.max)
        scaled = torch.where(counts > 0, scaled, before)
        logits.index_copy_(0, places, scaled - (presence * (generated > 0) + frequency * generated))

    def _rows(self, slots: Ints) -> Ints:
        try:
            return np.array([self._places[int(slot)] for slot in slots], dtype=np.int64)
        except KeyError:
            raise ValueError("a draw with penalties needs the counts of its tokens") from None

    def _grow(self) -> None:
        places, vocabulary = self._table.shape
        grown = self._table.new_zeros((max(1, 2 * places), vocabulary))
        grown[:places] = self._table
        self._table = grown

    def _moved(self, array: NDArray[Any]) -> Tensor:
        return upload(array, self._table.device)

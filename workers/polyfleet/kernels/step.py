"""What the kernels of one step share beside their operands: which rows belong to whom, and where their KV lies."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Ints = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Step:
    """One forward pass over T rows of B sequences, those with one row first. Tensors are int64 on the device.

    Sequence b has the rows `row_starts[b]` … `row_starts[b + 1] - 1`, the last of them at position `lengths[b] - 1`.
    Kernels may not wait for the device: what decides shapes is known on the host too.
    """

    token_ids: Tensor  # [T]
    positions: Tensor  # [T]
    places: Tensor  # [T] block * block_size + offset of each row in the caches
    selected: Tensor  # [S] rows whose logits are wanted
    tables: Tensor  # [B, W] blocks of each sequence, its last one again up to those that the longest takes
    lengths: Tensor  # [B]
    row_starts: Tensor  # [B + 1]
    host_lengths: Ints  # [B]
    host_row_starts: Ints  # [B + 1]

    @property
    def num_rows(self) -> int:
        """T."""
        return len(self.token_ids)

    @property
    def num_sequences(self) -> int:
        """B."""
        return len(self.host_lengths)

    @property
    def num_single(self) -> int:
        """How many sequences have one row: the first ones."""
        return int(np.count_nonzero(np.diff(self.host_row_starts) == 1))


class Numbers(NamedTuple):
    """What a Step is laid out from: int64 tensors on the device."""

    token_ids: Tensor  # [T]
    positions: Tensor  # [T]
    owners: Tensor  # [T] which of the B sequences each row belongs to
    selected: Tensor  # [S]
    slots: Tensor  # [B] the sequences' rows of the block tables
    lengths: Tensor  # [B]
    row_starts: Tensor  # [B + 1]


def lay_out(numbers: Numbers, lengths: Ints, row_starts: Ints, tables: Tensor, block_size: int) -> Step:
    """The Step of `numbers`, two of which are given as the host knows them too; `tables` is [slots, blocks]."""
    width = int(-(-lengths.max() // block_size))
    flat = tables.view(-1)
    first = numbers.slots * tables.shape[1]  # place in `flat` of each sequence's table
    last = torch.div(numbers.lengths - 1, block_size, rounding_mode="floor")
    columns = torch.minimum(torch.arange(width, device=tables.device), last[:, None])
    mine = flat.index_select(0, (columns + first[:, None]).view(-1)).view(-1, width)
    index = last + first
    if len(numbers.positions) > len(lengths):  # not one row each
        index = torch.div(numbers.positions, block_size, rounding_mode="floor") + first.index_select(0, numbers.owners)
    places = torch.add(numbers.positions % block_size, flat.index_select(0, index), alpha=block_size)
    rows = (numbers.token_ids, numbers.positions, places, numbers.selected)
    return Step(*rows, mine, numbers.lengths, numbers.row_starts, lengths, row_starts)


def make_step(
    sequences: Sequence[tuple[Sequence[int], int, Sequence[int]]], block_size: int, device: torch.device
) -> Step:
    """A Step of (token ids, first position, blocks) each, one-row sequences first; the last row of each is selected."""
    counts = np.array([len(ids) for ids, _, _ in sequences])
    starts = np.concatenate(([0], counts.cumsum()))
    lengths = counts + [start for _, start, _ in sequences]
    tables = np.zeros((len(sequences), max(len(blocks) for _, _, blocks in sequences)), dtype=np.int64)
    for table, (_, _, blocks) in zip(tables, sequences, strict=True):
        table[: len(blocks)] = blocks
    ids = np.concatenate([each for each, _, _ in sequences])
    positions = np.concatenate([np.arange(start, start + len(each)) for each, start, _ in sequences])
    slots = np.arange(len(sequences))
    numbers = (ids, positions, np.repeat(slots, counts), starts[1:] - 1, slots, lengths, starts)
    moved = Numbers(*(torch.from_numpy(each).to(device) for each in numbers))
    return lay_out(moved, lengths, starts, torch.from_numpy(tables).to(device), block_size)


@cache
def _can_pin(device_type: str) -> bool:
    """Whether torch has page-locked memory for such devices."""
    try:
        torch.empty(1).pin_memory()
    except RuntimeError:
        return False
    return device_type != "cpu"


def upload(values: NDArray[Any], device: torch.device) -> Tensor:
    """A copy of host values on the device, made behind what it has to do already and without waiting for it.

    Its way leads over page-locked memory, which torch gives out again only when the device has read it.
    """
    tensor = torch.from_numpy(values)
    if _can_pin(device.type):
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device, copy=True)

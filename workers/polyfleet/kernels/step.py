"""What the kernels of one step share beside their operands: which rows belong to whom, and where their KV lies."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Ints = NDArray[Any]
_PAD = np.zeros(1, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Step:
    """One forward pass over T rows of B sequences, those with one row first. Tensors are int64 on the device.

    Sequence b has the rows `row_starts[b]` … `row_starts[b + 1] - 1`, the last of them at position `lengths[b] - 1`.
    Kernels may not wait for the device: what decides shapes is known on the host too.
    """

    token_ids: Tensor  # [T]
    positions: Tensor  # [T]
    blocks: Tensor  # [T] where each row lies in the caches: its block,
    offsets: Tensor  # [T] its offset in there,
    places: Tensor  # [T] and both as one number, block * block_size + offset
    selected: Tensor  # [S] rows whose logits are wanted
    tables: Tensor  # [B, W] blocks of each sequence, its last one again up to those that the longest takes
    slots: Tensor  # [B] where the states of each sequence lie
    lengths: Tensor  # [B]
    row_starts: Tensor  # [B + 1]
    host_lengths: Ints  # [B]
    host_row_starts: Ints  # [B + 1]
    host_selected: Ints = field(default_factory=lambda: _PAD)  # [S]
    adapters: Tensor | None = None  # [T] of each row, negative: none; None where no row has one
    host_adapters: Ints = field(default_factory=lambda: _PAD)  # [T]
    given: tuple[Tensor, Tensor] | None = None  # rows [R] that have no embedding of their token but the one of [R, H]
    local: "Step | None" = None  # the same in blocks of a second pool, for caches with a window, if any
    prompts: int | None = None  # where the device alone knows row_starts and lengths: sequences with several rows, most

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


class Layout(NamedTuple):
    """A Step's arrays as the host computes them, in the order of its fields; any integers."""

    token_ids: Ints
    positions: Ints
    blocks: Ints
    offsets: Ints
    places: Ints
    selected: Ints
    tables: Ints
    slots: Ints
    lengths: Ints
    row_starts: Ints

    def send(self, device: torch.device, *others: Ints) -> tuple[Step, list[Tensor]]:
        """The Step, and copies [n] of `others`, which travel with it: all in one piece."""
        tensors = upload_all((*self, *others), device)
        token_ids, positions, blocks, offsets, places, selected = tensors[:6]
        tables, slots, lengths, row_starts = tensors[6 : len(self)]
        rows = (token_ids, positions, blocks, offsets, places, selected)
        shared = (tables.view(self.tables.shape), slots, lengths, row_starts)
        return Step(*rows, *shared, self.lengths, self.row_starts, self.selected), tensors[len(self) :]


def lay_out(
    rows: tuple[Ints, Ints, Ints], slots: Ints, lengths: Ints, row_starts: Ints, tables: Ints, block_size: int
) -> Layout:
    """What follows from `rows` (token ids [T], positions [T], selected [S]) and the sequences' `slots` in `tables`."""
    token_ids, positions, selected = rows
    last = (lengths - 1) // block_size
    mine = tables[slots[:, None], np.minimum(np.arange(last.max() + 1), last[:, None])]
    owners = slots if len(positions) == len(slots) else np.repeat(slots, np.diff(row_starts))
    columns, offsets = np.divmod(positions, block_size)
    blocks = tables[owners, columns]
    places = blocks.astype(np.int64) * block_size + offsets
    return Layout(token_ids, positions, blocks, offsets, places, selected, mine, slots, lengths, row_starts)


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
    rows = (ids, positions, starts[1:] - 1)
    return lay_out(rows, np.arange(len(sequences)), lengths, starts, tables, block_size).send(device)[0]


@cache
def can_pin(device_type: str) -> bool:
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
    if can_pin(device.type):
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device, copy=True)


def upload_all(arrays: Sequence[Ints], device: torch.device) -> list[Tensor]:
    """Copies [n] of host integers on the device, as int64, in one piece; each begins at a multiple of 16 bytes."""
    parts: list[Ints] = []
    wanted: list[int] = []
    for each in arrays:
        wanted.append(len(parts))
        parts.append(each.reshape(-1))
        if each.size % 2:
            parts.append(_PAD)
    moved = upload(np.concatenate(parts, dtype=np.int64), device)
    tensors = torch.split_with_sizes(moved, [each.size for each in parts])
    return [tensors[index] for index in wanted]

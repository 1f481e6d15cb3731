# mypy: disable-error-code="no-untyped-def, untyped-decorator, misc"
"""What surrounds a decode step that stays on the device: its Step out of a few numbers, and the likeliest tokens.

Rows without a slot (-1) are padding: they read nothing and leave nothing.
"""

from dataclasses import replace

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from polyfleet.kernels.step import Ints, Step, upload

COPIED = 128  # blocks at once
LOGITS = 8192  # of a program


@triton.jit
def prepare_kernel(
    numbers, slot_tables, last_token, token_ids, positions, blocks, offsets, places, lengths, tables,
    rows, stride, WIDTH: tl.constexpr, BLOCK_SIZE: tl.constexpr, COPIED: tl.constexpr,
):  # fmt: skip
    """One sequence's share of a Step; the blocks of a slot are WIDTH of `stride` columns."""
    row = tl.program_id(0)
    token = tl.load(numbers + row).to(tl.int64)
    slot = tl.load(numbers + rows + row).to(tl.int64)
    length = tl.load(numbers + 2 * rows + row).to(tl.int64)
    real = slot >= 0
    drawn = tl.load(last_token + (-1 - token), mask=real & (token < 0), other=0)
    tl.store(token_ids + row, tl.where(token < 0, drawn, token))
    position = tl.where(real, length - 1, 0)
    block = tl.load(slot_tables + slot * stride + position // BLOCK_SIZE, mask=real, other=0).to(tl.int64)
    tl.store(positions + row, position)
    tl.store(blocks + row, block)
    tl.store(offsets + row, position % BLOCK_SIZE)
    tl.store(places + row, tl.where(real, block * BLOCK_SIZE + position % BLOCK_SIZE, -1))
    tl.store(lengths + row, tl.where(real, length, 0))
    used = tl.where(real, tl.cdiv(length, BLOCK_SIZE), 0).to(tl.int32)
    for start in range(0, used, COPIED):
        column = start + tl.arange(0, COPIED)
        mine = tl.load(slot_tables + slot * stride + column, mask=column < used, other=0)
        tl.store(tables + row.to(tl.int64) * WIDTH + column, mine.to(tl.int64), mask=column < used)


@triton.jit
def best_kernel(
    logits, bests, where, lines, bits, VOCABULARY: tl.constexpr, LOGITS: tl.constexpr, PARTS: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    """The highest of some logits of a row, and its id, the lowest of equals; NaN where one of them is not finite.

    MASKED: of the tokens whose `bits` are set, of the line that `lines` names for each row; negative: of all.
    """
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    column = part * LOGITS + tl.arange(0, LOGITS)
    inside = column < VOCABULARY
    values = tl.load(logits + row * VOCABULARY + column, mask=inside, other=float("-inf")).to(tl.float32)
    odd = tl.max((inside & (values - values != 0)).to(tl.int32), 0)
    if MASKED:
        values = tl.where(allowed(tl.load(lines + row), bits, column, inside, VOCABULARY), values, float("-inf"))
    best, place = tl.max(values, 0, return_indices=True, return_indices_tie_break_left=True)
    tl.store(bests + row * PARTS + part, tl.where(odd != 0, float("nan"), best))
    tl.store(where + row * PARTS + part, part * LOGITS + place)


@triton.jit
def allowed(line, bits, column, inside, VOCABULARY: tl.constexpr):
    """Whether tokens may be drawn by one of the lines of `bits` (see `sampling.masks`); negative: each may."""
    WORDS: tl.constexpr = (VOCABULARY + 31) // 32
    words = tl.load(bits + line.to(tl.int64) * WORDS + column // 32, mask=inside & (line >= 0), other=-1)
    return (words >> (column % 32)) & 1 != 0


@triton.jit
def bar_kernel(values, lines, bits, VOCABULARY: tl.constexpr, LOGITS: tl.constexpr):
    """Logits become minus infinity in place where `bits` are not set, of the line that `lines` names for each row."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * LOGITS + tl.arange(0, LOGITS)
    inside = column < VOCABULARY
    barred = inside & ~allowed(tl.load(lines + row), bits, column, inside, VOCABULARY)
    tl.store(values + row * VOCABULARY + column, float("-inf"), mask=barred)


@triton.jit
def pick_kernel(
    bests, where, slots, last_token, token_ids, finite, VOCABULARY: tl.constexpr, PARTS: tl.constexpr,
    PADDED: tl.constexpr,
):  # fmt: skip
    """The best of a row's parts; some valid id where a logit is not finite."""
    row = tl.program_id(0).to(tl.int64)
    part = tl.arange(0, PADDED)
    inside = part < PARTS
    values = tl.load(bests + row * PARTS + part, mask=inside, other=float("-inf"))
    odd = tl.max((inside & (values != values)).to(tl.int32), 0)
    _, best = tl.max(tl.where(values != values, float("-inf"), values), 0, return_indices=True)
    token = tl.load(where + row * PARTS + tl.minimum(best, PARTS - 1)).to(tl.int64)
    token = tl.minimum(tl.maximum(token, 0), VOCABULARY - 1)
    tl.store(token_ids + row, token)
    tl.store(finite + row, (odd == 0).to(tl.uint8))
    if slots is not None:
        slot = tl.load(slots + row).to(tl.int64)
        tl.store(last_token + slot, token, mask=slot >= 0)


def results_of(packed: Tensor) -> tuple[Tensor, Tensor]:
    """Of rows that lie in one piece, so that one copy moves them: tokens [n] and whether all logits were finite [n]."""
    rows = len(packed) // 9
    return packed[: 8 * rows].view(torch.int64), packed[8 * rows :].view(torch.bool)


class DecodeBuffers:
    """Room on one device for the Steps of up to `rows` sequences with one row each, in place from step to step."""

    def __init__(self, rows: int, max_blocks: int, block_size: int, device: torch.device, pools: int = 1) -> None:
        self.numbers = torch.zeros(4 * rows, dtype=torch.int32, device=device)  # token ids, slots, lengths, adapters
        self.results = torch.zeros(9 * rows, dtype=torch.uint8, device=device)  # see `results_of`
        self._rows = torch.zeros((pools, 6, rows), dtype=torch.int64, device=device)
        self._tables = torch.zeros((pools, rows, max_blocks), dtype=torch.int64, device=device)
        self._starts = torch.arange(rows + 1, device=device)
        self._block_size = block_size
        self._parts: dict[int, tuple[Tensor, Tensor]] = {}

    def of(self, rows: int) -> tuple[Tensor, Tensor]:
        """The `numbers` and `results` of a step with so many rows."""
        if rows not in self._parts:
            self._parts[rows] = self.numbers[: 4 * rows], self.results[: 9 * rows]
        return self._parts[rows]

    def prepare(self, rows: int, slot_tables: Tensor, last_token: Tensor) -> Step:
        """The Step of the first 4 * `rows` of `numbers`; `slot_tables` is [slots, max_blocks of each pool]."""
        steps = [self._prepared(rows, pool, slot_tables, last_token) for pool in range(len(self._tables))]
        return replace(steps[0], local=steps[1]) if len(steps) > 1 else steps[0]

    def _prepared(self, rows: int, pool: int, slot_tables: Tensor, last_token: Tensor) -> Step:
        token_ids, positions, blocks, offsets, places, lengths = self._rows[pool, :, :rows]
        tables = self._tables[pool, :rows]
        made = (token_ids, positions, blocks, offsets, places, lengths, tables)
        width = tables.shape[1]
        mine = slot_tables[:, pool * width :], last_token, *made, rows, slot_tables.stride(0)
        prepare_kernel[(rows,)](self.numbers, *mine, width, self._block_size, COPIED, num_warps=1)
        longest = np.full(rows, width * self._block_size)
        starts = self._starts[: rows + 1]
        return Step(
            token_ids=token_ids,
            positions=positions,
            blocks=blocks,
            offsets=offsets,
            places=places,
            selected=starts[:rows],
            tables=tables,
            slots=self.numbers[rows : 2 * rows],
            lengths=lengths,
            row_starts=starts,
            host_lengths=longest,
            host_row_starts=np.arange(rows + 1),
            adapters=self.numbers[3 * rows : 4 * rows],
        )

    def pick(self, logits: Tensor, last_token: Tensor) -> None:
        """Each row's likeliest token, into `results` and its slot of `last_token`."""
        slots = self.numbers[len(logits) : 2 * len(logits)]
        token_ids, finite = results_of(self.of(len(logits))[1])
        _pick(logits, token_ids, finite, slots=slots, last_token=last_token)


class TritonMasking:
    """What sets of tokens do to logits, for `sampling.device`: `bits` [M, words] of the ascending `masked` rows [M]."""

    def likeliest(self, logits: Tensor, masked: Ints, bits: Ints) -> tuple[Tensor, Tensor]:
        """Of logits [S, V] the likeliest token that each row may take [S], and whether all of them are finite [S]."""
        token_ids = torch.empty(len(logits), dtype=torch.int64, device=logits.device)
        finite = torch.empty(len(logits), dtype=torch.bool, device=logits.device)
        _pick(logits, token_ids, finite, bits=_moved(masked, bits, logits))
        return token_ids, finite

    def bar(self, values: Tensor, masked: Ints, bits: Ints) -> None:
        """Make minus infinity of logits [S, V], in place, what rows may not take."""
        rows, vocabulary = values.shape
        moved = _moved(masked, bits, values)
        bar_kernel[(rows, triton.cdiv(vocabulary, LOGITS))](values, *moved, vocabulary, LOGITS)


def _moved(masked: Ints, bits: Ints, logits: Tensor) -> tuple[Tensor, Tensor]:
    """Which line of bits each row has, negative: none [S], and the bits, by one copy."""
    lines = np.full(len(logits), -1, dtype=np.int32)
    lines[masked] = np.arange(len(masked))
    moved = upload(np.concatenate((lines, bits.reshape(-1))), logits.device)
    return moved[: len(lines)], moved[len(lines) :]


def _pick(
    logits: Tensor,
    token_ids: Tensor,
    finite: Tensor,
    *,
    slots: Tensor | None = None,
    last_token: Tensor | None = None,
    bits: tuple[Tensor | None, Tensor | None] = (None, None),
) -> None:
    """The likeliest token of each row, that `bits` allow if there are some; into its slot of `last_token`, too."""
    rows, vocabulary = logits.shape
    parts = triton.cdiv(vocabulary, LOGITS)
    bests = torch.empty((rows, parts), dtype=torch.float32, device=logits.device)
    where = torch.empty((rows, parts), dtype=torch.int32, device=logits.device)
    sizes = vocabulary, LOGITS, parts, bits[1] is not None
    best_kernel[(rows, parts)](logits.contiguous(), bests, where, *bits, *sizes, num_warps=8)
    operands = bests, where, slots, last_token, token_ids, finite.view(torch.uint8)
    pick_kernel[(rows,)](*operands, vocabulary, parts, triton.next_power_of_2(parts), num_warps=1)

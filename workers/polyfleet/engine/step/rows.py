"""What a StepPlan says of the rows and draws of its sequences, as arrays in the order of its fields."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from polyfleet.engine.step.needs import OF_ROWS, Need
from polyfleet.engine.step.pool_kinds import POOL_KINDS, pools
from polyfleet.sampling.arrays import Int32s

if TYPE_CHECKING:
    from polyfleet.engine.step.sequence import Sequence as EngineSequence

Parts = Sequence[Sequence[int] | Int32s]  # arrays of a plan
Share = tuple["EngineSequence", int]  # a sequence and how many of its next tokens a step computes

NOTHING = np.zeros(0, dtype=np.int32)


def decoding(decodes: Sequence["EngineSequence"]) -> tuple[Int32s, ...]:
    """The arrays of sequences that have one row and draw, in the order of StepPlan's fields, up to `pool_kinds`."""
    count = len(decodes)
    if not count:
        return (NOTHING, NOTHING, NOTHING, np.zeros(1, dtype=np.int32), *[NOTHING] * 6)
    slots = np.array([each.place[0] for each in decodes], dtype=np.int32)  # type: ignore[index]
    lengths = np.array([each.num_tokens for each in decodes], dtype=np.int32)
    known = [
        -1 if each.num_tokens - each.num_prompt > len(each.generated_ids) else each.generated_ids[-1]
        for each in decodes
    ]
    token_ids = np.array(known, dtype=np.int32)
    token_ids = np.where(token_ids < 0, -1 - slots, token_ids)  # of those that are being drawn
    rows = np.arange(count + 1, dtype=np.int32)
    return token_ids, lengths - 1, slots, rows, lengths, rows[:count], slots, lengths, NOTHING, NOTHING


def of_shares(shares: Iterable[Share], count: int) -> tuple[Parts, int]:
    """The same of sequences behind `count` with one row each, and what these need; the first row start is there."""
    parts: tuple[list[int], ...] = ([], [], [], [], [], [], [], [], [], [])
    token_ids, positions, slots, row_starts, lengths, draw_rows, draw_slots, draw_positions, pooled, pool_kinds = parts
    needs = 0
    for sequence, size in shares:
        first = sequence.num_computed
        end = first + size
        token_ids += sequence.tokens(first, end) if size > 1 else (sequence.next_token(),)
        num_rows = count + len(token_ids)
        num_draws = end - sequence.num_tokens + 1
        positions += range(first, end)
        slots.append(sequence.slot)
        lengths.append(end)
        needs |= sequence.needs & OF_ROWS
        row_starts.append(num_rows)
        pooling = sequence.pooling
        if pooling is not None and pools(pooling, first, end, sequence.num_tokens):
            pooled.append(count + len(slots) - 1)
            pool_kinds.append(POOL_KINDS[pooling])
            needs |= Need.POOLING
        elif sequence.scoring:
            draw_rows += range(num_rows - size, num_rows)
            draw_slots += [sequence.slot] * size
            draw_positions += range(first + 1, end + 1)
            needs |= sequence.needs
        elif pooling is None and num_draws > 0:
            draw_rows += range(num_rows - num_draws, num_rows)
            draw_slots += [sequence.slot] * num_draws
            draw_positions += range(end - num_draws + 1, end + 1)
            needs |= sequence.needs
    return parts, needs

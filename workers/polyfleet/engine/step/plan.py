"""StepPlan, one step as flat arrays, and the Assembler, the only code that writes them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from polyfleet.engine.step.image_rows import Places, given_rows
from polyfleet.engine.step.needs import MASKED, NEEDS, needs_of_rows
from polyfleet.engine.step.needs import NO_ADAPTER as NO_ADAPTER
from polyfleet.engine.step.needs import Need as Need
from polyfleet.engine.step.rows import NOTHING as NOTHING
from polyfleet.engine.step.rows import Parts, Share, decoding, of_shares
from polyfleet.sampling.arrays import Int32s
from polyfleet.sampling.draw import PARAMETERS, Draws, Parameters, Start, parameters
from polyfleet.wire.sampling import GREEDY

if TYPE_CHECKING:
    from polyfleet.engine.step.sequence import Sequence as EngineSequence


@dataclass(slots=True)
class StepPlan:
    """One forward pass over T rows of B sequences, with S draws of tokens; P of the sequences are pooled.

    A sequence draws behind its last row, or, where its last rows are drafts, behind each of these and the row before
    them, side by side. Sequences of one row come first. Sequence b has the rows `row_starts[b]` … `row_starts[b + 1] -
    1`, at positions up to `lengths[b] - 1`; the KV of all positions before them is in the cache. Its blocks are the
    first of `block_tables[slots[b]]`, as many as its length takes; of a second pool, `Capacity.max_blocks` columns on.

    All arrays are borrowed from the Assembler: they change behind `Executor.launch`. Those of `numbers` lie in one
    piece in the order of the fields, so that one copy moves them. `block_tables`, `sampling` and `adapters` are kept
    from step to step; what changed in them since the last launch that was accepted stands in `changed` and `starts`.
    """

    numbers: Int32s
    token_ids: Int32s  # [T]; -1 - slot: the token that is being drawn for this slot
    positions: Int32s  # [T]
    slots: Int32s  # [B]
    row_starts: Int32s  # [B + 1]
    lengths: Int32s  # [B] positions that are valid behind this step
    draw_rows: Int32s  # [S] ascending
    draw_slots: Int32s  # [S]
    draw_positions: Int32s  # [S] tokens before the one that is drawn
    pooled: Int32s  # [P] which of the B sequences, ascending
    pool_kinds: Int32s  # [P] 0: the sum of all rows is wanted, 1: the last row, 2: the first row
    cleared_blocks: Int32s  # to be made 0 before anything is computed; a second pool's count on from the first's
    needs: Need
    block_tables: Int32s  # [slots, blocks of a sequence at most, of each pool side by side]
    changed: Int32s  # slots with changes in their rows of `block_tables` or `sampling`
    sampling: Parameters  # [slots]
    starts: Sequence[Start]
    adapters: Int32s = field(default_factory=lambda: NOTHING)  # [slots] each one's adapter, or NO_ADAPTER
    inputs: Sequence[NDArray[np.float32]] = ()  # of the graph's inputs [T, width]
    asked: Parameters | None = None  # [S] of `sampling`, once `draws` has looked it up
    given: Places | None = None  # rows [R], ascending, that have no embedding of their token but the one of [R, H]

    @property
    def num_rows(self) -> int:
        """T."""
        return len(self.token_ids)

    @property
    def num_draws(self) -> int:
        """S."""
        return len(self.draw_rows)

    @property
    def masked(self) -> bool:
        """Whether some draw may not take every token as it is."""
        return MASKED[self.needs]

    @property
    def draw_sequences(self) -> NDArray[np.int64]:
        """[S] which of the B sequences draws."""
        return np.searchsorted(self.row_starts, self.draw_rows, side="right") - 1

    def draws(self) -> Draws:
        """What is asked of the rows of logits; a copy."""
        slots = self.draw_slots.astype(np.int64)
        if self.asked is None:
            self.asked = self.sampling[slots]
        drafted = bool((slots[1:] == slots[:-1]).any())
        behind = self.token_ids[self.draw_rows].astype(np.int64) if drafted else None
        return Draws(self.asked, slots, self.draw_positions.astype(np.int64), behind=behind)


class Assembler:
    """Turns shares of a step into a plan. Arrays of slots persist and are changed only where something changed.

    So does the plan of sequences that all decode on.
    """

    def __init__(self, max_sequences: int, table_width: int) -> None:
        self._tables = np.zeros((max_sequences, table_width), dtype=np.int32)
        self._sampling = np.zeros(max_sequences, dtype=PARAMETERS)
        self._adapters = np.full(max_sequences, NO_ADAPTER, dtype=np.int32)
        self._changed: set[int] = set()
        self._starts: list[Start] = []
        self._cleared: list[int] = []
        self._last: _Decoding | None = None  # of the last plan, where it has nothing else
        self._accepted: _Decoding | None = None  # the same, once the plan was launched

    def start(self, slot: int, sequence: "EngineSequence") -> None:
        """A sequence begins in a slot, with the blocks that it has."""
        self._adapters[slot] = sequence.adapter
        sequence.scoring = sequence.wants_scores and sequence.num_unscored > 0
        if sequence.scoring:
            self._sampling[slot] = parameters(GREEDY, 0, sequence.request.prompt_logprobs)
            sequence.needs = int(Need.MASKS | Need.LOGPROBS | needs_of_rows(sequence.adapter))
        else:
            self._set_sampling(slot, sequence)
        self.set_blocks(slot, 0, sequence.blocks)

    def _scored(self, sequence: "EngineSequence") -> None:
        """All tokens of its prompt were looked up; what it draws from now on is its own."""
        sequence.scoring = False
        self._set_sampling(sequence.slot, sequence)
        self._changed.add(sequence.slot)

    def _set_sampling(self, slot: int, sequence: "EngineSequence") -> None:
        request = sequence.request
        self._sampling[slot] = parameters(request.sampling, request.choice, request.logprobs)
        needs = Need.NOTHING if request.sampling.greedy else Need.RANDOM
        needs |= Need.PENALTIES if request.sampling.penalised else Need.NOTHING
        needs |= Need.NOTHING if request.logprobs is None else Need.LOGPROBS
        needs |= Need.MASKS if sequence.masked else Need.NOTHING
        sequence.needs = int(needs | needs_of_rows(sequence.adapter))
        if needs & Need.PENALTIES:
            self._starts.append(Start(slot, request.prompt_ids, tuple(sequence.generated_ids)))

    def set_blocks(self, slot: int, first: int, blocks: Sequence[int]) -> None:
        """A sequence's blocks from its `first` on."""
        if len(blocks) == 1:  # the usual case, and ten times as fast
            self._tables[slot, first] = blocks[0]
        else:
            self._tables[slot, first : first + len(blocks)] = blocks
        self._changed.add(slot)

    def clear(self, blocks: Iterable[int]) -> None:
        """Have blocks cleared at the beginning of the next step: they may hold numbers that are not finite."""
        self._cleared += blocks

    def written(self, blocks: Iterable[int]) -> None:
        """Blocks were written anew from end to end: whatever they held, they need not be cleared."""
        written = set(blocks)
        self._cleared = [block for block in self._cleared if block not in written]

    def assemble(
        self,
        shares: Sequence[Share],
        decodes: Sequence["EngineSequence"] = (),
        drawn: NDArray[Any] | None = None,
    ) -> StepPlan:
        """The plan in which each sequence computes so many of its next tokens, those with one token first.

        `decodes` come before all of `shares`: each computes the last token that it has, or is being given, and draws.
        The same tuple again, behind a plan that was accepted, are sequences that have all come one token further;
        `drawn` begins with their last tokens, where these are at hand.
        """
        before, self._accepted = self._accepted, None
        if before is not None and before.sequences is decodes and not shares and not self._cleared:
            before.advance(self._changes() if self._changed else NOTHING, self._starts, drawn)
            self._last = before
            return before.plan
        plan = self._lay_out(shares, decodes)
        again = isinstance(decodes, tuple) and decodes and not shares and not self._cleared
        again = again and not (plan.masked and any(map(_barred_for_now, decodes)))
        self._last = _Decoding(decodes, plan) if again else None
        return plan

    def _lay_out(self, shares: Sequence[Share], decodes: Sequence["EngineSequence"]) -> StepPlan:
        for sequence, _ in shares:
            if sequence.scoring and not sequence.num_unscored:
                self._scored(sequence)
        parts: Parts = decoding(decodes)
        needs = 0
        for sequence in decodes:
            needs |= sequence.needs
        if shares:
            others, more = of_shares(shares, len(decodes))
            parts = [np.concatenate(both, dtype=np.int32, casting="unsafe") for both in zip(parts, others, strict=True)]
            needs |= more
        tables, sampling = self._tables, self._sampling
        plan = lay_out((*parts, self._cleared), NEEDS[needs], tables, self._changes(), sampling, self._starts)
        plan.adapters = self._adapters
        spans = ((each.images, each.num_computed, each.num_computed + size) for each, size in shares)
        plan.given = given_rows(spans, plan.row_starts[len(decodes) :])
        return plan

    def _changes(self) -> Int32s:
        return np.array(list(self._changed), dtype=np.int32) if self._changed else NOTHING

    def accepted(self) -> None:
        """The last plan was launched: its changes need not be told again."""
        self._accepted = self._last
        if self._changed:
            self._changed.clear()
            self._starts = []
        if self._cleared:
            self._cleared = []


class _Decoding:
    """A plan of sequences that decode, and what it is without regard to what its borrower wrote there."""

    def __init__(self, sequences: Sequence["EngineSequence"], plan: StepPlan) -> None:
        self.sequences, self.plan = sequences, plan
        self._numbers = plan.numbers.copy()
        self._growth = NOTHING  # of `_numbers` from step to step
        self._drawing = NOTHING  # token ids that are being drawn

    def advance(self, changed: Int32s, starts: Sequence[Start], drawn: NDArray[Any] | None) -> None:
        """All sequences have come one token further."""
        plan, sequences, numbers = self.plan, self.sequences, self._numbers
        if self._growth is NOTHING:
            self._grow_by(len(sequences))
        numbers += self._growth
        plan.numbers[:] = numbers
        if drawn is not None:
            plan.token_ids[:] = drawn[: len(sequences)]
        elif sequences[0].num_drawing:  # as all are
            plan.token_ids[:] = self._drawing
        else:
            plan.token_ids[:] = [each.generated_ids[-1] for each in sequences]
        plan.changed, plan.starts = changed, starts

    def _grow_by(self, count: int) -> None:
        # Token ids, positions, slots and row starts, lengths, draw rows and slots, positions.
        growth = np.repeat((0, 1, 0, 1, 0, 1), (count, count, 2 * count + 1, count, 2 * count, count))
        self._growth, self._drawing = growth.astype(np.int32), -1 - self._numbers[2 * count : 3 * count]


def _barred_for_now(sequence: "EngineSequence") -> bool:
    """Whether it needs a mask only until it has so many tokens."""
    return bool(sequence.needs & Need.MASKS) and sequence.mask is None and not sequence.request.logit_bias


def lay_out(
    parts: Parts, needs: Need, block_tables: Int32s, changed: Int32s, sampling: Parameters, starts: Sequence[Start]
) -> StepPlan:
    """A plan of `parts`, which are its arrays of `numbers` in the order of the fields."""
    numbers = np.concatenate(parts, dtype=np.int32, casting="unsafe")  # a list without items has floats
    ends = accumulate(map(len, parts))
    views = [numbers[end - len(part) : end] for part, end in zip(parts, ends, strict=True)]
    ids, positions, slots, row_starts, lengths, draw_rows, draw_slots, draw_positions, pooled, last, cleared = views
    return StepPlan(
        *(numbers, ids, positions, slots, row_starts, lengths, draw_rows, draw_slots, draw_positions, pooled, last),
        *(cleared, needs, block_tables, changed, sampling, starts),
    )

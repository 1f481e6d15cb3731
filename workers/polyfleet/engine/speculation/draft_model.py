"""Drafts by a small model of the same vocabulary, on the same device."""

import logging
from collections.abc import Mapping
from collections.abc import Sequence as Items
from dataclasses import replace
from itertools import accumulate
from typing import Any

import numpy as np

from polyfleet.engine.executor import Capacity, DeviceTimeout, Executor
from polyfleet.engine.step.plan import Need, StepPlan, lay_out
from polyfleet.engine.step.sequence import Place, Sequence
from polyfleet.sampling.draw import PARAMETERS, parameters

log = logging.getLogger(__name__)

TIMEOUT_SECONDS = 300.0  # of one of its steps
USUAL, LEARNED, HOPE = 0.7, 0.05, 0.002  # a draft's chance at first; of it learned from one; and regained without one
UNPENALISED: dict[str, Any] = {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
Rows = list[tuple[Sequence, Items[int], int]]  # of each sequence the tokens to compute, and the first one's position


class _Known:
    """How far a sequence is computed, and what was drafted for it last."""

    def __init__(self, place: Place, chances: list[float]) -> None:
        self.place = place
        self.chances = chances  # of each draft, behind those before it
        self.computed = 0  # tokens whose keys and values are there
        self.drafts: list[int] = []
        self.behind = 0  # generated tokens that it had then


class DraftModel:
    """Computes its keys and values into the blocks that a sequence has, at the same places of a cache of its own.

    It draws as the model does, by the uniform of each position, so that both come to the same token as often as can
    be. What it finds in a block that others filled may be anything: that makes for bad drafts, and for nothing worse.
    """

    def __init__(self, executor: Executor, capacity: Capacity) -> None:
        """`executor` has room for `capacity`, which is the model's."""
        self._executor = executor
        self._step_tokens = capacity.step_tokens
        self._tables = np.zeros((capacity.max_sequences, capacity.max_blocks), dtype=np.int32)
        self._sampling = np.zeros(capacity.max_sequences, dtype=PARAMETERS)
        self._known: dict[Sequence, _Known] = {}
        self._chances = [USUAL] * (capacity.drafts + 1)  # of all sequences: each begins with them
        self._broken = False

    def chances(self, sequence: Sequence, number: int) -> Items[float]:
        """As often as drafts came true of late, each behind those before it."""
        if self._broken:
            return ()
        known = self._learn(sequence)
        known.chances = [each + HOPE * (USUAL - each) for each in known.chances]
        return known.chances[:number]

    def draft(self, wanted: Mapping[Sequence, int]) -> Mapping[Sequence, Items[int]]:
        """For each of the sequences, first what it has not seen of it; none where that takes more than a step."""
        rows: Rows = []
        room = self._step_tokens
        for sequence in wanted:
            known = self._learn(sequence)
            end = min(sequence.num_tokens, known.computed + room)
            if end > known.computed:
                rows.append((sequence, sequence.tokens(known.computed, end), known.computed))
            room -= end - known.computed
        found: dict[Sequence, list[int]] = {sequence: [] for sequence in wanted}
        try:
            while rows:
                rows = self._step(rows, wanted, found)
        except DeviceTimeout:
            raise
        except Exception as error:
            log.error("the draft model failed and drafts no more", exc_info=error)
            self._broken = True
            return {}
        for sequence, drafts in found.items():
            known = self._known[sequence]
            known.drafts, known.behind = drafts, len(sequence.generated_ids)
        return found

    def forget(self, sequence: Sequence) -> None:
        """A sequence has ended."""
        self._known.pop(sequence, None)

    def close(self) -> None:
        """Free what the model holds."""
        self._executor.close()

    def _learn(self, sequence: Sequence) -> _Known:
        """What is known of a running sequence, once its last drafts are compared with what was drawn."""
        known = self._known.get(sequence)
        if known is None or known.place is not sequence.place:
            known = self._known[sequence] = _Known(sequence.running_place, list(self._chances))
            params = replace(sequence.request.sampling, **UNPENALISED)
            self._sampling[sequence.slot] = parameters(params, sequence.request.choice)
        drawn = sequence.generated_ids[known.behind :]
        if not known.drafts or not drawn:
            return known
        right = 0
        for index, (draft, token_id) in enumerate(zip(known.drafts, drawn, strict=False)):
            for chances in (known.chances, self._chances):
                chances[index] += LEARNED * ((draft == token_id) - chances[index])
            if draft != token_id:
                break
            right += 1
        start = len(sequence.request.prompt_ids) + known.behind
        known.computed = min(known.computed, start + right)
        known.drafts = []
        return known

    def _step(self, rows: Rows, wanted: Mapping[Sequence, int], found: dict[Sequence, list[int]]) -> Rows:
        """Compute rows, and draw behind those that come to a sequence's end; the rows of the next step."""
        rows.sort(key=lambda each: len(each[1]) > 1)
        drawing = [each for each in rows if each[2] + len(each[1]) == each[0].num_tokens + len(found[each[0]])]
        pending = self._executor.launch(self._plan(rows, drawing))
        self._executor.draw(pending)
        output = self._executor.collect(pending, TIMEOUT_SECONDS)
        if output.faults.any():
            raise RuntimeError("the draft model's output is not finite")
        for sequence, token_ids, first in rows:
            self._known[sequence].computed = first + len(token_ids)
        following: Rows = []
        for (sequence, _, _), token_id in zip(drawing, output.token_ids.tolist(), strict=True):
            found[sequence].append(token_id)
            if len(found[sequence]) < wanted[sequence]:
                following.append((sequence, (token_id,), self._known[sequence].computed))
        return following

    def _plan(self, rows: Rows, drawing: Rows) -> StepPlan:
        sequences = [sequence for sequence, _, _ in rows]
        for each in sequences:
            self._tables[each.slot, : len(each.blocks)] = each.blocks
        sizes = [len(token_ids) for _, token_ids, _ in rows]
        starts = [0, *accumulate(sizes)]
        ends = [first + size for (_, _, first), size in zip(rows, sizes, strict=True)]
        last = [starts[index + 1] - 1 for index, each in enumerate(rows) if each in drawing]
        slots = [each.slot for each in sequences]
        parts = (
            [token_id for _, token_ids, _ in rows for token_id in token_ids],
            [first + index for (_, _, first), size in zip(rows, sizes, strict=True) for index in range(size)],
            *(slots, starts, ends, last, [each.slot for each, _, _ in drawing]),
            *([first + len(token_ids) for _, token_ids, first in drawing], (), (), ()),
        )
        random = any(not sequence.request.sampling.greedy for sequence, _, _ in drawing)
        needs = Need.RANDOM if random else Need.NOTHING
        return lay_out(parts, needs, self._tables, np.array(slots, dtype=np.int32), self._sampling, ())

"""A StepPlan as the CPU library reads it: pointers to its arrays as they are."""

import numpy as np
from numpy.typing import NDArray

from polyfleet.engine.step.plan import Need, StepPlan
from polyfleet.kernels.cpu.library import PfStep

ADAPTERS = int(Need.ADAPTERS)


class StepFields:
    """One PfStep that is filled anew for each step, and the arrays that it writes."""

    def __init__(self) -> None:
        self._fields = PfStep()
        self._tables: NDArray[np.int32] | None = None
        self._numbers: NDArray[np.int32] | None = None
        self._make_room(1)

    def of(self, plan: StepPlan) -> PfStep:
        """The plan's arrays as they are, without a copy."""
        fields, tables = self._fields, plan.block_tables
        fields.adapters = plan.adapters.ctypes.data if int(plan.needs) & ADAPTERS else None
        fields.num_given = 0
        if plan.given is not None:
            places, values = plan.given
            fields.num_given, fields.given, fields.given_rows = len(places), values.ctypes.data, places.ctypes.data
        if plan.numbers is self._numbers and tables is self._tables:  # all lies where it lay in the step before
            return fields
        self._numbers = plan.numbers
        if tables is not self._tables:
            self._tables = tables
            fields.num_slots, fields.table_width = tables.shape
            fields.block_tables = tables.ctypes.data
        rows, sequences, draws = len(plan.token_ids), len(plan.slots), len(plan.draw_rows)
        if max(draws, sequences) > len(self.faults):
            self._make_room(max(draws, sequences))
        fields.num_rows, fields.num_sequences, fields.num_draws = rows, sequences, draws
        fields.num_cleared = len(plan.cleared_blocks)
        # Where each array begins among the plan's numbers, in the order of its fields.
        at = plan.numbers.ctypes.data
        fields.token_ids = at
        fields.slots = at = at + 4 * 2 * rows
        fields.row_starts = at = at + 4 * sequences
        fields.lengths = at = at + 4 * (sequences + 1)
        fields.draw_rows = at = at + 4 * sequences
        fields.cleared_blocks = at + 4 * (3 * draws + 2 * len(plan.pooled))
        return fields

    def _make_room(self, count: int) -> None:
        self.token_ids = np.empty(count, dtype=np.int32)  # [S] or more
        self.faults = np.empty(count, dtype=np.int8)  # [B] or more
        self._fields.greedy_ids, self._fields.faults = self.token_ids.ctypes.data, self.faults.ctypes.data

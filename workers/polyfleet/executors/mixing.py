"""Room on the device for steps of prompts, and of prompts beside decodes, with few rows: one graph holds them all.

Sequences without rows fill what is left, the last of them always; rows that belong to none read nothing and leave
nothing. Where sequences begin and end is numbers on the device like any other.
"""

import numpy as np
import torch
from torch import Tensor

from polyfleet.engine.step.plan import StepPlan
from polyfleet.kernels.step import Step

PROMPTS = 16  # sequences with several rows, at most


class MixedBuffers:
    """Of one size."""

    def __init__(self, rows: int, sequences: int, block_size: int, device: torch.device) -> None:
        self.rows, self.sequences = rows, sequences
        self._block_size = block_size
        self._sizes = (rows, rows, rows, sequences, sequences + 1, sequences + 1, sequences + 2)
        self.numbers = torch.zeros(sum(self._sizes), dtype=torch.int64, device=device)

    def takes(self, plan: StepPlan) -> bool:
        """Whether there is room for the plan."""
        counts = plan.num_rows <= self.rows, max(len(plan.slots), plan.num_draws) <= self.sequences
        return all(counts) and int((np.diff(plan.row_starts) > 1).sum()) <= PROMPTS

    def packed(self, plan: StepPlan | None) -> Tensor:
        """What `numbers` must be for a plan, whose tables are of one pool; without one, for a step of padding."""
        host = np.zeros(sum(self._sizes), dtype=np.int64)
        token_ids, positions, places, selected, slots, lengths, starts = np.split(host, np.cumsum(self._sizes)[:-1])
        places[:], slots[:] = -1, -1
        if plan is not None:
            rows, count = plan.num_rows, len(plan.slots)
            token_ids[:rows], positions[:rows], selected[: plan.num_draws] = (
                plan.token_ids,
                plan.positions,
                plan.draw_rows,
            )
            owners = np.repeat(plan.slots, np.diff(plan.row_starts))
            columns, offsets = np.divmod(plan.positions, self._block_size)
            places[:rows] = plan.block_tables[owners, columns].astype(np.int64) * self._block_size + offsets
            slots[:count], lengths[:count], starts[: count + 1] = plan.slots, plan.lengths, plan.row_starts
            starts[count + 1 :] = rows
        return torch.from_numpy(host)

    def step(self, slot_tables: Tensor, last_token: Tensor) -> Step:
        """Of `numbers`; `slot_tables` is [slots, blocks]."""
        token_ids, positions, places, selected, slots, lengths, starts = torch.split(self.numbers, list(self._sizes))
        drawn = last_token.index_select(0, (-1 - token_ids).clamp_(min=0))
        blocks = torch.div(places, self._block_size, rounding_mode="floor")
        return Step(
            token_ids=torch.where(token_ids < 0, drawn, token_ids),
            positions=positions,
            blocks=blocks,
            offsets=places - blocks * self._block_size,
            places=places,
            selected=selected,
            tables=slot_tables.index_select(0, slots.clamp(min=0)),
            slots=slots,
            lengths=lengths,
            row_starts=starts,
            host_lengths=np.zeros(self.sequences + 1, dtype=np.int64),
            host_row_starts=np.zeros(self.sequences + 2, dtype=np.int64),
            prompts=PROMPTS,
        )

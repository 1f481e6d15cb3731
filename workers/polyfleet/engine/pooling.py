"""Hidden states to embeddings: one function for all executors."""

import torch
from torch import Tensor

from polyfleet.sampling.arrays import Int32s


def pool(hidden: Tensor, row_starts: Int32s, pooled: Int32s, pool_kinds: Int32s) -> tuple[Tensor, Tensor]:
    """Hidden states [T, H] pooled as a StepPlan wants it, [P, H], and which results are finite, bool [P]; both there.

    Float64 on the host, float32 elsewhere. A sequence's sum depends on its own rows alone. Waits for no device.
    """
    dtype = torch.float64 if hidden.device.type == "cpu" else torch.float32
    starts = row_starts.tolist()
    sums = []
    for sequence, kind in zip(pooled.tolist(), pool_kinds.tolist(), strict=True):
        first, end = starts[sequence], starts[sequence + 1]
        rows = slice(end - 1 if kind == 1 else first, first + 1 if kind == 2 else end)
        sums.append(hidden[rows].sum(dim=0, dtype=dtype))
    results = torch.stack(sums) if sums else hidden.new_empty((0, hidden.shape[1]), dtype=dtype)
    return results, results.isfinite().all(dim=1)

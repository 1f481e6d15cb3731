"""The draw on an accelerator, one program for all rows: whole rows are ranked where they lie, ids alone come back.

The definition is `host`'s, and so is the result, but for draws that lie within rounding of an edge of the distribution.
"""

from functools import lru_cache

import torch
from torch import Tensor

from polyfleet.sampling.candidates import Filters

ROWS = 64  # ranked at once: bounds the memory it takes to about 40 bytes for each of their logits


@lru_cache
def can_draw(device: torch.device) -> bool:
    """Whether the device computes in float64, which a cumulated distribution over many tokens needs."""
    try:
        return float(torch.ones(2, dtype=torch.float64, device=device).sum()) == 2.0
    except (RuntimeError, TypeError):
        return False


def draw(logits: Tensor, filters: Filters) -> list[int]:
    """One token per row of finite logits [n, V] in float32."""
    columns = (filters.temperature, filters.top_k, filters.top_p, filters.min_p, filters.uniform)
    moved = [torch.split(torch.from_numpy(each).to(logits.device), ROWS) for each in columns]
    parts = zip(torch.split(logits, ROWS), *moved, strict=True)
    ids: list[int] = torch.cat([_draw(*each) for each in parts]).tolist()
    return ids


def _draw(logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, uniform: Tensor) -> Tensor:
    """Ids [n]; the parameters are columns [n, 1] as Filters has them."""
    values, ids = logits.sort(dim=-1, descending=True, stable=True)  # equal ones stay in order of their ids
    weights = ((values.double() - values[:, :1].double()) / temperature).exp()
    cumulated = weights.cumsum(dim=-1)
    left_by_k = cumulated.gather(1, top_k - 1)
    kept_by_p = (cumulated - weights < top_p * left_by_k).sum(dim=-1, keepdim=True)
    kept_by_min = (weights >= min_p).sum(dim=-1, keepdim=True)
    kept = torch.minimum(torch.minimum(top_k, kept_by_p), kept_by_min)
    mass = cumulated.gather(1, kept - 1)
    place = (cumulated <= uniform * mass).sum(dim=-1, keepdim=True)
    return ids.gather(1, torch.minimum(place, kept - 1))[:, 0]

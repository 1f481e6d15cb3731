"""Drawing in a group: rank 0 draws, and the others are told on the device."""

from collections.abc import Iterable

import torch
from torch import Tensor

from polyfleet.kernels.ranks import Ranks
from polyfleet.sampling.device import DeviceDrawn, DeviceSampler
from polyfleet.sampling.draw import Draws, Start


class GroupSampler:
    """Of one rank. The others' logits are the same, but they know neither parameters nor masks."""

    def __init__(self, sampler: DeviceSampler, ranks: Ranks) -> None:
        self._sampler = sampler
        self._ranks = ranks

    def start(self, starts: Iterable[Start]) -> None:
        """Sequences begin in these slots."""
        self._sampler.start(starts)

    def draw(self, logits: Tensor, draws: Draws) -> DeviceDrawn:
        """As DeviceSampler; on other ranks than the first only the tokens are drawn ones."""
        if self._ranks.rank == 0:
            drawn = self._sampler.draw(logits, draws)
        else:
            rows = len(logits)
            drawn = DeviceDrawn(
                torch.empty(rows, dtype=torch.int64, device=logits.device),
                torch.ones(rows, dtype=torch.bool, device=logits.device),
            )
        self._ranks.broadcast(drawn.token_ids)
        return drawn

"""A rank's end of its group over torch.distributed: the accelerator's collectives, or gloo on CPUs."""

import logging
import os
from datetime import timedelta
from typing import TYPE_CHECKING

import torch
import torch.distributed as distributed
from torch import Tensor

if TYPE_CHECKING:
    from polyfleet.executors.ranks.one_shot import OneShot

log = logging.getLogger(__name__)

COLLECTIVE_SECONDS = 600.0
LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}  # ranks are on one host


class DistributedRanks:
    """Ranks that met over a file that `store` names. One at a time in a process."""

    def __init__(
        self, backend: str, store: str, rank: int, size: int, device: torch.device, *, peer_memory: bool = False
    ) -> None:
        """Waits until all have come. Raises ValueError in a process that is in a group already."""
        if distributed.is_initialized():
            raise ValueError("this process computes in a group of ranks already, and can't in two")
        self.rank, self.size = rank, size
        self._on_host = device.type == "cpu"
        for name, value in LOOPBACK.items():
            os.environ.setdefault(name, value)
        distributed.init_process_group(
            backend,
            store=distributed.FileStore(store, size),  # type: ignore[attr-defined]
            rank=rank,
            world_size=size,
            timeout=timedelta(seconds=COLLECTIVE_SECONDS),
            device_id=None if self._on_host else device,
        )
        self._gathered(torch.zeros(1, 1, device=device))  # makes the connections
        self._one_shot = self._tried(store, device) if peer_memory else None

    def all_reduce(self, x: Tensor) -> Tensor:
        """The sum. On the host in the order of ranks and in float32, so that rows are the same in any company."""
        if not len(x):
            return x  # where nothing is drawn
        if self._on_host:
            return self._gathered(x).sum(0, dtype=torch.float32).to(x.dtype)
        if self._one_shot is not None and self._one_shot.takes(x):
            return self._one_shot(x)
        distributed.all_reduce(x)
        return x

    def all_gather(self, x: Tensor) -> Tensor:
        """All ranks' x side by side."""
        if not len(x):
            return x.new_empty(0, self.size * x.shape[-1])
        return self._gathered(x).transpose(0, 1).flatten(1)

    def broadcast(self, x: Tensor) -> None:
        """Rank 0's x to all."""
        distributed.broadcast(x, 0)

    def leave(self) -> None:
        """End the group; the process may join another then."""
        if distributed.is_initialized():
            distributed.destroy_process_group()

    def _tried(self, store: str, device: torch.device) -> "OneShot | None":
        """The one-shot all-reduce, where all ranks can have it and it sums up rightly."""
        try:
            from polyfleet.executors.ranks.one_shot import TRIED, OneShot

            made = OneShot(distributed.FileStore(f"{store}.one_shot", self.size), self.rank, self.size, device)  # type: ignore[attr-defined]
        except (ImportError, RuntimeError) as error:
            log.warning("the ranks sum up without shared memory: %s", str(error).partition("\n")[0])
            made = None
        if not self._all(made is not None, device) or made is None:
            return None
        right = torch.ones((), dtype=torch.bool, device=device)
        for count in TRIED:
            x = (torch.arange(count, device=device) % 1000 + count % 7).float()  # so that all sums are exact
            right &= (made(x * (self.rank + 1)) == x * (self.size * (self.size + 1) / 2)).all()
        if self._all(bool(right), device):
            return made
        log.warning("the ranks sum up without shared memory: there sums are wrong")
        return None

    def _all(self, good: bool, device: torch.device) -> bool:
        """Whether it is so on all ranks."""
        return int(self._gathered(torch.tensor([[int(good)]], device=device)).min()) == 1

    def _gathered(self, x: Tensor) -> Tensor:
        """[ranks, rows, columns]."""
        x = x.contiguous()
        gathered = torch.empty((self.size, *x.shape), dtype=x.dtype, device=x.device)
        if self._on_host:
            distributed.all_gather(list(gathered.unbind(0)), x)
        else:
            distributed.all_gather_into_tensor(gathered.view(-1, x.shape[-1]), x)
        return gathered

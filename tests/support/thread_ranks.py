"""Ranks that are threads of one process: what a group computes, without its processes."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

Result = TypeVar("Result")
SECONDS = 60.0


class Meeting:
    """Where threads leave what they have, and wait for each other."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.calls = 0
        self._barrier = threading.Barrier(size, timeout=SECONDS)
        self._left: list[Tensor] = [torch.empty(0)] * size

    def gather(self, rank: int, x: Tensor) -> list[Tensor]:
        """What each left, in order."""
        self._left[rank] = x.clone()
        self.calls += rank == 0
        self._barrier.wait()
        found = list(self._left)
        self._barrier.wait()
        return found


@dataclass(frozen=True)
class ThreadRanks:
    """One thread's end."""

    rank: int
    meeting: Meeting

    @property
    def size(self) -> int:
        return self.meeting.size

    def all_reduce(self, x: Tensor) -> Tensor:
        return torch.stack(self.meeting.gather(self.rank, x)).sum(0)

    def all_gather(self, x: Tensor) -> Tensor:
        return torch.cat(self.meeting.gather(self.rank, x), dim=-1)

    def broadcast(self, x: Tensor) -> None:
        x.copy_(self.meeting.gather(self.rank, x)[0])


def on_ranks(size: int, work: Callable[[ThreadRanks], Result]) -> Sequence[Result]:
    """What `work` gives on each rank."""
    meeting = Meeting(size)
    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(work, [ThreadRanks(rank, meeting) for rank in range(size)]))

"""Memory that the ranks of a group on one host read of each other, and the one-shot all-reduce over it."""

import json
from typing import Any

import torch
from torch import Tensor

from polyfleet.kernels.triton.all_reduce import MOST, PROGRAMS, one_shot

WIDEST = 4  # bytes of a number
TRIED = (1, 1000, 4096, 5000, 131072, MOST) * 8  # numbers of the first sums, which must be right


class OneShot:
    """A rank's end. Making it waits for all ranks; a launch that another rank does not make waits for ever."""

    def __init__(self, store: Any, rank: int, size: int, device: torch.device) -> None:
        """Raises RuntimeError where ranks can't read each other's memory, on all of them or on some."""
        self._rank, self._size = rank, size
        self._data = torch.zeros(2 * MOST * WIDEST, dtype=torch.uint8, device=device)
        self._flags = torch.zeros(PROGRAMS * size, dtype=torch.int32, device=device)
        self._epochs = torch.zeros(PROGRAMS, dtype=torch.int32, device=device)
        torch.get_device_module(device).synchronize(device)
        self._others: list[torch.UntypedStorage] = []
        self._data_at, self._flags_at = self._met(store, "data", self._data), self._met(store, "flags", self._flags)

    def takes(self, x: Tensor) -> bool:
        """Whether a value is small enough."""
        return 0 < x.numel() <= MOST

    def __call__(self, x: Tensor) -> Tensor:
        """The sum of all ranks' x."""
        return one_shot(x, self._data_at, self._flags_at, self._epochs, self._rank, self._size)

    def _met(self, store: Any, name: str, mine: Tensor) -> Tensor:
        """Addresses [size] of each rank's tensor of that name."""
        store.set(f"{name} {self._rank}", _handle(mine))
        addresses = []
        for rank in range(self._size):
            if rank == self._rank:
                addresses.append(mine.data_ptr())
                continue
            self._others.append(_opened(store.get(f"{name} {rank}"), mine.device))
            addresses.append(self._others[-1].data_ptr())
        return torch.tensor(addresses, dtype=torch.int64, device=mine.device)


def _handle(tensor: Tensor) -> bytes:
    """By which another process opens a tensor's memory."""
    share: Any = tensor.untyped_storage()._share_cuda_
    _, *parts = share()
    return json.dumps([each.hex() if isinstance(each, bytes) else each for each in parts]).encode()


def _opened(handle: bytes, device: torch.device) -> torch.UntypedStorage:
    """The memory that a handle tells of, as seen from `device`."""
    memory, size, offset, counter, counter_offset, event, _ = json.loads(handle)
    arguments = (bytes.fromhex(memory), size, offset, bytes.fromhex(counter), counter_offset, bytes.fromhex(event))
    synchronised = False  # whether the event is to be waited for: who shared the memory has waited itself
    return torch.UntypedStorage._new_shared_cuda(device.index or 0, *arguments, synchronised)

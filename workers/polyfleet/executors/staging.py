"""Where decode steps' numbers stand on the host on their way to the device and back: room that they take in turn."""

from typing import Any

import torch
from torch import Tensor

from polyfleet.engine.plan import Need, StepPlan
from polyfleet.executors.block_copies import wait_for
from polyfleet.kernels.triton.stepping import results_of
from polyfleet.sampling.device import DeviceDrawn

SECONDS = 300.0  # that the device may take for the step that had the room before, until it counts as hung


class Slip:
    """Of one step."""

    def __init__(self, rows: int, *, locked: bool) -> None:
        self._numbers = torch.zeros(4 * rows, dtype=torch.int32, pin_memory=locked)  # see `DecodeBuffers`
        self._results = torch.zeros(9 * rows, dtype=torch.uint8, pin_memory=locked)
        self._host = self._numbers.numpy()
        self.done: Any = None  # an event behind what the device did last with it

    def filled(self, plan: StepPlan, size: int) -> Tensor:
        """The numbers of a plan whose sequences all decode, padded to so many rows."""
        rows = plan.num_rows
        numbers = self._host[: 4 * size].reshape(4, size)
        numbers[0, :rows], numbers[1, :rows], numbers[2, :rows] = plan.token_ids, plan.slots, plan.lengths
        numbers[3, :rows] = plan.adapters[plan.slots] if plan.needs & Need.ADAPTERS else -1
        numbers[:, rows:] = -1
        return self._numbers[: 4 * size]

    def fetched(self, results: Tensor, size: int, rows: int) -> DeviceDrawn:
        """What `rows` of `size` came to, once the device has done what it has to do so far."""
        packed = self._results[: 9 * size]
        packed.copy_(results[: 9 * size], non_blocking=True)
        token_ids, finite = results_of(packed)
        return DeviceDrawn(token_ids[:rows], finite[:rows])


class Slips:
    """One more than steps may be under way, of so many rows at most; page-locked where the device is asynchronous."""

    def __init__(self, depth: int, rows: int, *, locked: bool) -> None:
        self._slips = [Slip(rows, locked=locked) for _ in range(depth + 1)]
        self._turn = 0

    def next(self) -> Slip:
        """The one that was taken longest ago, once the device has done with it; raises DeviceTimeout."""
        self._turn = (self._turn + 1) % len(self._slips)
        slip = self._slips[self._turn]
        if slip.done is not None:
            wait_for(slip.done, SECONDS, "a step")
        return slip

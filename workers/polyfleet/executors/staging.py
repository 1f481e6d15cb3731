"""Where decode steps' numbers stand on the host on their way to the device and back: room that they take in turn."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polyfleet.engine.step.needs import ADAPTED
from polyfleet.engine.step.plan import StepPlan
from polyfleet.executors.blocks.streams import wait_for
from polyfleet.executors.torch_pending import Fetched
from polyfleet.kernels.triton.stepping import results_of

SECONDS = 300.0  # that the device may take for the step that had the room before, until it counts as hung


class Sheet:
    """The room of a step of `size` rows."""

    __slots__ = ("finite", "host", "numbers", "results", "token_ids")

    def __init__(self, numbers: Tensor, results: Tensor, size: int) -> None:
        self.numbers, self.results = numbers[: 4 * size], results[: 9 * size]
        self.host: NDArray[np.int32] = self.numbers.numpy().reshape(4, size)
        self.token_ids, self.finite = (each.numpy() for each in results_of(self.results))


class Slip:
    """Of one step. What lies where is the same for all steps of a size, and laid out for the first of them."""

    def __init__(self, rows: int, *, locked: bool) -> None:
        self._numbers = torch.zeros(4 * rows, dtype=torch.int32, pin_memory=locked)  # see `DecodeBuffers`
        self._results = torch.zeros(9 * rows, dtype=torch.uint8, pin_memory=locked)
        self._sheets: dict[int, Sheet] = {}
        self.done: Any = None  # an event behind what the device did last with it

    def filled(self, plan: StepPlan, size: int) -> Tensor:
        """The numbers of a plan whose sequences all decode, padded to so many rows."""
        rows, sheet = plan.num_rows, self._sheet(size)
        numbers = sheet.host
        numbers[0, :rows], numbers[1, :rows], numbers[2, :rows] = plan.token_ids, plan.slots, plan.lengths
        numbers[3, :rows] = plan.adapters[plan.slots] if ADAPTED[plan.needs] else -1
        if rows < size:
            numbers[:, rows:] = -1
        return sheet.numbers

    def fetched(self, results: Tensor, size: int, rows: int) -> Fetched:
        """What `rows` of `size` came to, once the device has done what it has to do so far."""
        sheet = self._sheet(size)
        sheet.results.copy_(results, non_blocking=True)
        return Fetched(sheet.token_ids[:rows], sheet.finite[:rows])

    def _sheet(self, size: int) -> Sheet:
        if size not in self._sheets:
            self._sheets[size] = Sheet(self._numbers, self._results, size)
        return self._sheets[size]


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

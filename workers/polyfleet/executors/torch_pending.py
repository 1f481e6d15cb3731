"""A step under way in torch, and what it came to."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from polyfleet.engine.executor import Fault, Pending, StepOutput
from polyfleet.sampling.arrays import Int32s
from polyfleet.sampling.device import DeviceDrawn
from polyfleet.sampling.draw import Drawn, Draws


class Fetched:
    """What rows came to, in room that is another step's later."""

    __slots__ = ("_finite", "_token_ids")

    def __init__(self, token_ids: NDArray[np.int64], finite: NDArray[np.bool_]) -> None:
        self._token_ids, self._finite = token_ids, finite

    def to_host(self) -> Drawn:
        """A copy, once the device's work so far is done."""
        return Drawn(self._token_ids.copy(), self._finite.copy())


@dataclass(slots=True)
class TorchPending(Pending):
    """A step under way. What stands on the device is dropped by `draw`, but for what is on its way to the host."""

    draws: Draws | None  # None: `launch` drew
    draw_sequences: NDArray[Any]  # [S]
    pooled_sequences: Int32s  # [P]
    logits: Tensor | None  # [S, V]
    draw_slots: Tensor | None  # [S]
    row_starts: Int32s  # [B + 1]
    sums: Tensor | None  # [T] of hidden states, not finite where one of them is not; None: their logits tell
    pooled: tuple[Tensor, Tensor] | None  # [P, H] and whether each is finite
    outputs: tuple[Tensor, ...] = ()  # of the graph, where they are wanted
    drawn: Drawn | DeviceDrawn | Fetched | None = None  # where `launch` gave one there is nothing left to draw
    done: Any = None  # an event behind the last copy to the host; None: all is here
    asked: bool = False  # whether `draw` was


def output_of(pending: TorchPending) -> StepOutput:
    """Of a step that is here."""
    drawn = pending.drawn
    if drawn is None:
        drawn = Drawn(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.bool_))
    elif not isinstance(drawn, Drawn):
        drawn = drawn.to_host()
    faults = np.full(len(pending.row_starts) - 1, Fault.NONE, dtype=np.int8)
    if pending.sums is not None:
        bad = ~np.isfinite(pending.sums.numpy())
        faults[np.logical_or.reduceat(bad, pending.row_starts[:-1])] = Fault.NOT_FINITE
    if not drawn.finite.all():
        faults[pending.draw_sequences[~drawn.finite]] = Fault.NOT_FINITE
    values = None
    if pending.pooled is not None:
        values, finite = (each.numpy() for each in pending.pooled)
        faults[pending.pooled_sequences[~finite]] = Fault.NOT_FINITE
    outputs = tuple((each.float() if each.is_floating_point() else each).numpy() for each in pending.outputs)
    return StepOutput(drawn.token_ids, faults, drawn.logprobs, values, outputs)

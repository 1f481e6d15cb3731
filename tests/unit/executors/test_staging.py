"""Room that decode steps take in turn on their way to a device and back."""

import pytest

pytest.importorskip("triton")

import numpy as np
import torch
from tests.support.stepping import GARBAGE

from polyfleet.engine.step.plan import Need, StepPlan, lay_out
from polyfleet.executors.staging import Slips
from polyfleet.sampling.draw import PARAMETERS


def plan_of(token_ids: list[int], slots: list[int], lengths: list[int], needs: Need) -> StepPlan:
    count = len(slots)
    rows, positions = range(count), [each - 1 for each in lengths]
    parts = (token_ids, positions, slots, range(count + 1), lengths, rows, slots, lengths, (), (), ())
    tables, changed = np.zeros((8, 4), dtype=np.int32), np.zeros(0, dtype=np.int32)
    plan = lay_out(parts, needs, tables, changed, np.zeros(8, dtype=PARAMETERS), ())
    plan.adapters = np.arange(8, dtype=np.int32) * 10
    return plan


@pytest.mark.parametrize(("needs", "adapters"), [(Need.NOTHING, [-1, -1]), (Need.ADAPTERS, [50, 20])])
def test_a_plans_numbers_are_padded_and_nothing_is_left_of_the_step_before(needs: Need, adapters: list[int]) -> None:
    slips = Slips(1, 4, locked=False)
    for _ in range(2):
        slips.next().filled(plan_of([GARBAGE] * 4, [1, 3, 4, 6], [9] * 4, Need.ADAPTERS), 4)
    slip = slips.next()
    numbers = slip.filled(plan_of([7, -6], [5, 2], [30, 40], needs), 3).view(4, 3)
    assert numbers[:, :2].tolist() == [[7, -6], [5, 2], [30, 40], adapters]
    assert numbers[:, 2].tolist() == [-1] * 4
    results = torch.zeros(9 * 3, dtype=torch.uint8)
    results[:24].view(torch.int64)[:] = torch.tensor([70, 80, 99])
    results[24:26] = torch.tensor([1, 0])
    fetched = slip.fetched(results, 3, 2)
    results.zero_()
    drawn = fetched.to_host()
    slip.fetched(results, 3, 2)  # another step's
    assert (drawn.token_ids.tolist(), drawn.finite.tolist()) == ([70, 80], [True, False])


class Mark:
    """An event that has come when it is asked about for the second time."""

    def __init__(self) -> None:
        self.asked = 0

    def query(self) -> bool:
        """Counted."""
        self.asked += 1
        return self.asked > 1


def test_room_is_taken_again_when_the_device_has_done_with_it() -> None:
    slips, marks = Slips(2, 1, locked=False), [Mark() for _ in range(5)]
    for mark in marks:
        slips.next().done = mark
    assert [mark.asked for mark in marks] == [2, 2, 0, 0, 0], "with two steps under way a third one's room is free"


def test_a_step_asks_torch_for_one_copy_and_for_no_view() -> None:
    slip, results = Slips(1, 4, locked=False).next(), torch.zeros(9 * 3, dtype=torch.uint8)
    plan = plan_of([7, -6], [5, 2], [30, 40], Need.NOTHING)
    slip.filled(plan, 3)
    with torch.profiler.profile() as found:
        slip.filled(plan, 3)
        slip.fetched(results, 3, 2)
    assert [each.name for each in found.events()] == ["aten::copy_"]

"""Paced work takes turns, and has a third of the time."""

import asyncio

import pytest

from polyfleet.gateway import pace
from polyfleet.gateway.pace import Pace


def test_rests_add_up_and_pass() -> None:
    now = 100.0
    paced = Pace(lambda: now)
    assert paced.spend(1.0) == pytest.approx(2.0)
    assert paced.spend(0.5) == pytest.approx(3.0)  # behind the other one's
    now += 10.0
    assert paced.spend(1.0) == pytest.approx(2.0)  # what was not used is not saved


async def test_others_run_between_two_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """As often as a piece is done, the loop turns at least once."""
    monkeypatch.setattr(pace, "REST", 1000.0)
    paced, order = Pace(), list[str]()

    def work() -> str:
        order.append("work")
        sum(range(1000))
        return "done"

    async def other() -> None:
        while order.count("work") < 3:
            if order[-1:] != ["other"]:
                order.append("other")
            await asyncio.sleep(0)

    *done, _ = await asyncio.gather(*(paced.run(work) for _ in range(3)), other())
    assert done == ["done"] * 3
    assert order[-5:] == ["work", "other", "work", "other", "work"]


async def test_work_that_fails_is_rested_from_too() -> None:
    paced = Pace(lambda: 0.0)

    def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await paced.run(fail)
    assert paced.spend(0.0) > 0

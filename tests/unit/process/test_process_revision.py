"""Revision: whoever waits hears of the next change, and none that came before the wait is missed."""

import asyncio

from polyfleet.process.revision import Revision


async def test_all_who_wait_hear_of_one_change() -> None:
    revision = Revision()
    waiting = [asyncio.create_task(revision.wait(0)) for _ in range(3)]
    await asyncio.sleep(0)
    assert not any(each.done() for each in waiting)
    revision.advance()
    assert await asyncio.gather(*waiting) == [1, 1, 1]


async def test_a_change_before_the_wait_is_not_missed() -> None:
    revision = Revision()
    revision.advance()
    revision.advance()
    assert await revision.wait(1) == 2
    assert await revision.wait(7) == 2  # seen in another life of whoever counts


async def test_without_a_change_the_wait_ends_in_time_with_the_same_number() -> None:
    revision = Revision()
    assert await revision.wait(0, timeout=0.01) == 0
    revision.advance()
    assert await revision.wait(1, timeout=0.01) == 1


async def test_one_who_gives_up_disturbs_nobody() -> None:
    revision = Revision()
    impatient, patient = (asyncio.create_task(revision.wait(0)) for _ in range(2))
    await asyncio.sleep(0)
    impatient.cancel()
    revision.advance()
    assert await patient == 1
    await asyncio.wait([impatient])
    assert impatient.cancelled()

"""Begins: one call after another, with turns of the event loop between them for what has begun."""

import asyncio
from functools import partial

from polyfleet.gateway.begins import MAX_BEHIND, TURNS, Begins


async def turns(number: int) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


async def test_a_call_that_comes_alone_begins_in_the_next_turn() -> None:
    begins, begun = Begins(), list[int]()
    for number in range(3):
        begins.add(partial(begun.append, number))
        assert begun == list(range(number))
        await turns(1)
        assert begun == list(range(number + 1))


async def test_news_that_are_read_while_a_call_begins_are_sent_before_the_next_one_does() -> None:
    begins, order = Begins(), list[str]()
    soon = asyncio.get_running_loop().call_soon

    def task(name: str) -> None:  # of a call, with news in the turn in which it runs first: taken, then sent
        order.append(name)
        soon(soon, order.append, f"news of {name}")

    for name in ("a", "b", "c"):
        begins.add(partial(soon, task, name))
    await turns(2 + 3 * TURNS)
    assert order == ["a", "news of a", "b", "news of b", "c", "news of c"]


async def test_when_the_port_closes_all_begin_in_their_order_and_once() -> None:
    begins, begun = Begins(), list[int]()
    for number in range(5):
        begins.add(partial(begun.append, number))
    begins.rush()
    assert begun == [0, 1, 2, 3, 4]
    begins.add(lambda: begun.append(5))
    await turns(2 * TURNS)
    assert begun == [0, 1, 2, 3, 4, 5]


async def test_a_begin_that_fails_holds_up_no_other() -> None:
    begins, begun = Begins(), list[int]()
    loop, failures = asyncio.get_running_loop(), list[object]()
    loop.set_exception_handler(lambda _, context: failures.append(context["exception"]))
    begins.add(lambda: 1 / 0)
    begins.add(lambda: begun.append(1))
    await turns(2 * TURNS)
    assert begun == [1]
    assert [type(each) for each in failures] == [ZeroDivisionError]


async def test_what_nobody_waits_for_comes_behind_all_calls_one_piece_in_a_turn() -> None:
    begins, order = Begins(), list[str]()
    for name in ("account", "log"):
        begins.behind(partial(order.append, name))
    for name in ("a", "b"):
        begins.add(partial(order.append, name))
    await turns(1 + TURNS)
    assert order == ["a", "b"]
    await turns(1)
    assert order == ["a", "b", "account"]
    begins.add(partial(order.append, "c"))
    await turns(2)
    assert order == ["a", "b", "account", "c", "log"]


async def test_where_calls_never_cease_no_more_waits_behind_them_than_is_allowed() -> None:
    begins, done = Begins(), list[int]()
    for number in range(MAX_BEHIND + 2):
        begins.behind(partial(done.append, number))
    for _ in range(4):
        begins.add(int)
    await turns(1 + 3 * TURNS)
    assert done == [0, 1]
    begins.rush()
    assert done == list(range(MAX_BEHIND + 2))

"""Listeners: called and woken at each change."""

import asyncio

from polyfleet.gateway.listeners import Listeners


async def test_listeners_call_and_wake() -> None:
    listeners, calls = Listeners(), list[int]()
    listeners.add(lambda: calls.append(1))
    waiting = asyncio.create_task(listeners.wait())
    cancelled = asyncio.create_task(listeners.wait())
    await asyncio.sleep(0)
    cancelled.cancel()
    await asyncio.sleep(0)
    listeners.call()
    await waiting
    listeners.call()
    assert calls == [1, 1]

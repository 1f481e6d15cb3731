"""What an engine's silence means: nothing while it is idle, unless it has a canary, which is due."""

import asyncio
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

from polyfleet.engine.canary.canary import CanaryResult, CanaryVerdict
from polyfleet.process.within import Within
from polyfleet.serving.health.watchdog import SILENT, EngineWatchdog, WatchdogLimits

LIMITS = WatchdogLimits(canary_interval=0.01, stall_timeout=0.04, replace_after=3)


class IdleWorker:
    """Notes what the watchdog does to it."""

    busy = False

    def __init__(self) -> None:
        self.done: list[str] = []

    def suspend(self, source: str, reason: str) -> None:
        self.done.append(f"suspended for {source}: {reason}")

    def resume(self, source: str) -> None:
        pass

    def replace_engine(self, reason: str) -> None:
        self.done.append(f"replaced: {reason}")

    def fail(self, reason: str) -> None:
        self.done.append(f"failed: {reason}")


async def watched(verdict: CanaryVerdict | None, seconds: float) -> list[str]:
    """What is done within so long to an idle worker whose engine says nothing behind its start."""
    worker, lifecycle = IdleWorker(), SimpleNamespace(reservation="")
    engine: Any = SimpleNamespace(heard=asyncio.get_running_loop().time(), stopped=False)
    watchdog = EngineWatchdog(worker, lifecycle, LIMITS)  # type: ignore[arg-type]
    watchdog.begin(verdict)
    with suppress(asyncio.TimeoutError), Within(seconds):
        await watchdog.watch(engine)
    return worker.done


async def test_a_canary_that_is_due_and_does_not_come_is_silence() -> None:
    done = await watched(CanaryVerdict(CanaryResult.RIGHT, ""), 60)
    assert done == [f"suspended for silence: {SILENT}", f"replaced: {SILENT}"]


async def test_an_engine_without_a_canary_may_be_silent_for_as_long_as_nobody_asks() -> None:
    assert await watched(None, 0.5) == []

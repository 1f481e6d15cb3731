"""Whether a worker's engine can be trusted: what its canary's verdicts, and its silence, mean for the worker."""

import asyncio
from collections import Counter
from typing import Protocol

from polyfleet.engine.canary import CanaryResult, CanaryVerdict
from polyfleet.serving.canary import TRUSTED
from polyfleet.serving.condition import Condition

CANARY, SILENCE = "canary", "silence"  # sources of trouble
NO_REFERENCE = "canary: no reference"
WATCH_SECONDS = 1.0
PATIENCE_SECONDS = 60.0  # with an engine whose canary is due; one step of a slow CPU may take long


class Suspendable(Protocol):
    """The worker."""

    def suspend(self, source: str, reason: str) -> None:
        """It can't be trusted."""
        ...

    def resume(self, source: str) -> None:
        """It can."""
        ...


class Spoken(Protocol):
    """The engine process."""

    @property
    def heard(self) -> float:
        """When it last said something, by the event loop's clock."""
        ...


class Trust:
    """One worker's; `runs` counts its canary's runs over all models."""

    def __init__(self, worker: Suspendable, condition: Condition, canary_interval: float) -> None:
        self.runs: Counter[CanaryResult] = Counter()
        self._worker = worker
        self._condition = condition
        self._canary_interval = canary_interval

    def begin(self, verdict: CanaryVerdict | None) -> None:
        """A new engine, with what its canary said at once; only that counts. None: it has no canary."""
        self.heard()
        if verdict is None:
            self._condition.reservation = NO_REFERENCE
            self._worker.resume(CANARY)
        else:
            self.judge(verdict)

    def judge(self, verdict: CanaryVerdict) -> None:
        """Act on an answer to the canary."""
        self.runs[verdict.result] += 1
        self._condition.reservation = NO_REFERENCE if verdict.result is CanaryResult.NO_REFERENCE else ""
        if verdict.result in TRUSTED:
            self._worker.resume(CANARY)
        else:
            self._worker.suspend(CANARY, verdict.reason)

    def heard(self) -> None:
        """The engine has said something."""
        self._worker.resume(SILENCE)

    async def watch(self, engine: Spoken) -> None:
        """Suspend the worker while the engine says nothing although its canary was due long ago: a step that hangs."""
        loop = asyncio.get_running_loop()
        while self._canary_interval:
            await asyncio.sleep(WATCH_SECONDS)
            if loop.time() - engine.heard > self._canary_interval + PATIENCE_SECONDS:
                self._worker.suspend(SILENCE, "The engine does not answer: a step hangs, on the device or before it.")

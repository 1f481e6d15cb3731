"""Whether a worker's engine can be trusted: what its canary's verdicts, and its silence, mean for the worker.

An engine that can't is suspended at once. After `replace_after` failed canaries in a row, or as many stall timeouts
without a word, its process is replaced; when the new one fails as well before a later canary is right, the worker ends.
"""

import asyncio
from collections import Counter
from dataclasses import dataclass
from typing import Protocol

from polyfleet.engine.canary.canary import CanaryResult, CanaryVerdict
from polyfleet.serving.health.canary_rounds import TRUSTED
from polyfleet.serving.health.lifecycle import Lifecycle

CANARY, SILENCE = "canary", "silence"  # sources of trouble
NO_REFERENCE = "canary: no reference"
WATCH_SECONDS = 1.0
STOPPED_SECONDS = 2.0  # a process that the operating system does not run is in no long step
STOPPED = "The engine process is stopped, by SIGSTOP or a debugger."
SILENT = "The engine does not answer: a step hangs, on the device or before it."


@dataclass(frozen=True, slots=True)
class WatchdogLimits:
    """How long an engine is trusted, and what is tried. Times are in seconds."""

    canary_interval: float = 0.0  # 0: no canary but the first
    stall_timeout: float = 60.0  # without a word although there is work; one step of a slow CPU may take long
    replace_after: int = 3
    load_stall_timeout: float = 300.0  # of a load; what is compiled or captured says nothing meanwhile

    def reload_limit(self, load_seconds: float) -> float:
        """How long a new engine process may load a model that took so long before: twice that, and a silence's time."""
        return 2 * load_seconds + self.replace_after * self.stall_timeout


class Suspendable(Protocol):
    """The worker."""

    def suspend(self, source: str, reason: str) -> None:
        """It can't be trusted."""
        ...

    def resume(self, source: str) -> None:
        """It can."""
        ...

    @property
    def busy(self) -> bool:
        """Whether its engine has work."""
        ...

    def replace_engine(self, reason: str) -> None:
        """Load the model again in a new engine process."""
        ...

    def fail(self, reason: str) -> None:
        """End."""
        ...


class Spoken(Protocol):
    """The engine process."""

    @property
    def heard(self) -> float:
        """When it last said something, by the event loop's clock."""
        ...

    @property
    def stopped(self) -> bool:
        """Whether the operating system does not run it, until somebody continues it."""
        ...


class EngineWatchdog:
    """One worker's; `runs` counts its canary's runs, `replacements` its engine's, over all models."""

    def __init__(self, worker: Suspendable, lifecycle: Lifecycle, limits: WatchdogLimits) -> None:
        self.runs: Counter[CanaryResult] = Counter()
        self.replacements = 0
        self._worker = worker
        self._lifecycle = lifecycle
        self._limits = limits
        self._has_canary = False
        self._failures = 0  # of the canary, in a row
        self._silent = False
        self._replaced = False

    def begin(self, verdict: CanaryVerdict | None, *, again: bool = False) -> None:
        """A new engine, with what its canary said at once; only that counts. None: it has no canary.

        `again`: it replaces one that could not be trusted, and has to show that it is better.
        """
        self._has_canary, self._failures, self._replaced = verdict is not None, 0, again
        self.heard()
        if verdict is None:
            self._lifecycle.reservation = NO_REFERENCE
            self._worker.resume(CANARY)
        else:
            self._take(verdict)

    def judge(self, verdict: CanaryVerdict) -> None:
        """Act on a later answer to the canary."""
        self._take(verdict)
        if verdict.result in TRUSTED:
            self._replaced = False

    def _take(self, verdict: CanaryVerdict) -> None:
        self.runs[verdict.result] += 1
        self._lifecycle.reservation = NO_REFERENCE if verdict.result is CanaryResult.NO_REFERENCE else ""
        if verdict.result in TRUSTED:
            self._failures = 0
            self._worker.resume(CANARY)
            return
        self._failures += 1
        self._worker.suspend(CANARY, verdict.reason)
        if self._failures >= self._limits.replace_after:
            self._give_up(verdict.reason)

    def heard(self) -> None:
        """The engine has said something."""
        self._silent = False
        self._worker.resume(SILENCE)

    async def watch(self, engine: Spoken) -> None:
        """Suspend the worker while the engine is stopped, or owes a word (work, or a canary that is due); then give up.

        Silence is counted in looks, not by the clock: a worker that was stopped itself has missed what was said.
        """
        pause = min(WATCH_SECONDS, self._limits.stall_timeout / 4)
        looks, stopped, spoke = 0, 0, engine.heard
        while True:
            await asyncio.sleep(pause)
            if engine.stopped:
                stopped += 1
            elif stopped:
                stopped = 0
                self.heard()  # it goes on
            if stopped * pause >= STOPPED_SECONDS:
                self._silent = True
                self._worker.suspend(SILENCE, STOPPED)
            looks = looks + 1 if engine.heard == spoke and self._owes_a_word(engine) else 0
            spoke = engine.heard
            stalls = looks * pause / self._limits.stall_timeout
            if stalls >= 1 and not self._silent:
                self._silent = True
                self._worker.suspend(SILENCE, SILENT)
            if stalls >= self._limits.replace_after:
                self._give_up(SILENT)
                return

    def _owes_a_word(self, engine: Spoken) -> bool:
        interval = self._limits.canary_interval
        due = self._has_canary and bool(interval) and asyncio.get_running_loop().time() - engine.heard > interval
        return self._silent or self._worker.busy or due

    def _give_up(self, reason: str) -> None:
        self._failures = 0
        if self._replaced:
            self._worker.fail(f"A new engine process is no better. {reason}")
        else:
            self.replacements += 1
            self._worker.replace_engine(reason)

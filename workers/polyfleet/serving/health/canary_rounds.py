"""When the engine process runs its canary, and what comes of it. No clock of its own but the one given."""

import time
from collections.abc import Callable
from typing import Protocol

from polyfleet.engine.canary.canary import CANARY_ID, Canary, CanaryResult, CanarySource, CanaryVerdict
from polyfleet.wire.answers import SequenceUpdate
from polyfleet.wire.limits import MAX_PRIORITY
from polyfleet.wire.requests import SequenceRequest

RETRY_SECONDS = 30.0  # without an interval, until the first right answer, or while the right one is being computed
PATIENCE_SECONDS = 10.0  # in the queue behind everybody; then the canary goes to its front
TRUSTED = (CanaryResult.RIGHT, CanaryResult.NO_REFERENCE)


class Queue(Protocol):
    """What running a canary needs of an engine."""

    @property
    def canary(self) -> CanarySource | None:
        """Who has the one to run next, whose answer may have come since the last run."""
        ...

    def add(self, request: SequenceRequest) -> None:
        """Queue a sequence."""
        ...

    def cancel(self, sequence_id: str) -> object:
        """End a sequence."""
        ...


class CanaryRounds:
    """One canary, at once and then every `interval` seconds (0: only until it was answered rightly), as an ordinary
    sequence of the lowest priority. Call `advance` before each step and `take` on what the step brought.
    """

    def __init__(self, canary: Canary | None, interval: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._canary = canary
        self._interval = interval
        self._clock = clock
        self._due: float | None = clock() if canary else None  # of the next run, or of more patience with this one
        self._tokens: list[int] | None = None  # of the run under way
        self._hurried = False
        self._verdict: CanaryVerdict | None = None

    def until_next(self, longest: float | None) -> float | None:
        """Seconds that an idle engine may sleep, at most `longest` (None: for ever)."""
        if self._due is None or self._tokens is not None:
            return longest
        wait = max(0.0, self._due - self._clock())
        return wait if longest is None else min(wait, longest)

    def advance(self, engine: Queue) -> None:
        """Queue the canary when it is due; put it before everybody when it has waited too long for its first token."""
        if self._canary is None or self._due is None or self._clock() < self._due:
            return
        if self._tokens is None:
            self._tokens, self._hurried = [], False
            self._due = self._clock() + PATIENCE_SECONDS
            self._canary = engine.canary.now() if engine.canary else self._canary
            engine.add(self._canary.request())
        elif not self._tokens and not self._hurried:
            self._hurried = True
            engine.cancel(CANARY_ID)
            engine.add(self._canary.request(MAX_PRIORITY))

    def take(self, updates: list[SequenceUpdate]) -> list[SequenceUpdate]:
        """The updates without the canary's, whose answer is judged once it is whole."""
        if self._tokens is None or self._canary is None:
            return updates
        for update in updates:
            if update.sequence_id == CANARY_ID:
                self._tokens += [token.token_id for token in update.tokens]
                if update.error or update.finish_reason is not None:
                    self._finish(self._canary.judge(self._tokens, update.error))
        return [update for update in updates if update.sequence_id != CANARY_ID]

    def verdict(self) -> CanaryVerdict | None:
        """What the last run said; once."""
        verdict, self._verdict = self._verdict, None
        return verdict

    def _finish(self, verdict: CanaryVerdict) -> None:
        self._verdict, self._tokens = verdict, None
        settled = verdict.result in TRUSTED and not (self._canary and self._canary.awaited)
        pause = self._interval or (0.0 if settled else RETRY_SECONDS)
        self._due = self._clock() + pause if pause else None

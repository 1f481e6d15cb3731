"""When an engine process does what need not be done at every turn: its status, and a look at its books."""

import time
from collections.abc import Callable

from polyfleet.engine.facts import EngineStatus
from polyfleet.serving.engine_protocol import ServedEngine

IDLE_CHECK_SECONDS = 1.0
STATUS_SECONDS = 0.02  # from status to status while sequences go on: that of each of a thousand steps costs too much


class Reports:
    """When an engine's status travels: with what commands came to, when there is no more work, and now and then."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._due = 0.0

    def status(self, engine: ServedEngine, commanded: bool) -> EngineStatus | None:
        """It, behind a step; None: not now. `commanded`: some commands were carried out before it."""
        now = self._clock()
        if now < self._due and not commanded and engine.has_work:
            return None
        self._due = now + STATUS_SECONDS
        return engine.status()


class Books:
    """When an idle engine checks its books: once, IDLE_CHECK_SECONDS after it last did something."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._due: float | None = None  # None: nothing has happened since

    @property
    def seconds(self) -> float | None:
        """Until then; None: not before something happens."""
        return None if self._due is None else max(0.0, self._due - self._clock())

    @property
    def due(self) -> bool:
        """Whether it is time."""
        return self.seconds == 0.0

    def opened(self) -> None:
        """The engine does something."""
        self._due = self._clock() + IDLE_CHECK_SECONDS

    def checked(self) -> None:
        """They are in order."""
        self._due = None

"""Whether a process of `polyfleet serve` hangs: it is stopped, or gives no answer. Waits for nothing."""

import time
from concurrent.futures import Future, ThreadPoolExecutor

from polyfleet.process.hangs import Looks, fetched

LOOK_SECONDS = 1.0
EVERY_SECONDS = 10.0  # between questions, while they are answered: each costs both sides about a millisecond


class Watch:
    """Looks at one process after the other, and asks at `url` (empty: nowhere) for a sign of life.

    `answered` says whether the present one ever gave any.
    """

    def __init__(self, url: str = "") -> None:
        self._url = url
        self._asking = ThreadPoolExecutor(1)
        self.begin()

    def begin(self) -> None:
        """Another process is looked at from here on, of which nothing is known."""
        self._looks, self.answered = Looks(), False
        self._looked = self._asked = float("-inf")
        self._question: Future[tuple[bool, float]] | None = None
        self._pause = 0.0

    def hangs(self, pid: int) -> bool:
        """Look, unless the last look is less than a second past."""
        now = time.monotonic()
        if now - self._looked < LOOK_SECONDS:
            return False
        self._looked = now
        if self._question is not None and self._question.done():
            well, seconds = self._question.result()
            self._looks.asked(seconds)
            self.answered = self.answered or well
            self._question, self._pause = None, EVERY_SECONDS if well else 0.0
        stopped = self._looks.at(pid)
        if self._url and not stopped and self._question is None and now - self._asked >= self._pause:
            self._asked, self._question = now, self._asking.submit(_ask, self._url)
        return self._looks.hung


def _ask(url: str) -> tuple[bool, float]:
    """Whether somebody answered there, and after how many seconds."""
    began = time.monotonic()
    try:
        fetched(url)
    except (OSError, ValueError):
        return False, time.monotonic() - began
    return True, time.monotonic() - began

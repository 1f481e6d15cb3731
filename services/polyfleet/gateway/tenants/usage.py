"""What callers used, until the scheduler has written it down: sums by day, tenant and model, in numbered reports."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import lru_cache
from typing import NamedTuple

from polyfleet.wire.answers import Usage

DAY_SECONDS = 86_400
MAX_ROWS = 10_000  # that are held while no scheduler answers; more are summed under no model


class UsageKey(NamedTuple):
    """What is summed together. `day` is UTC, as 2026-01-31."""

    day: str
    tenant: str
    model: str


@dataclass(slots=True)
class Totals:
    """Sums. `prompt_tokens` include the cached ones."""

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0


@dataclass(frozen=True, slots=True)
class UsageReport:
    """What is to be told under this number, again and again until somebody has heard it."""

    number: int
    rows: dict[UsageKey, Totals]


def today() -> str:
    """The day in UTC."""
    return _day(int(time.time() // DAY_SECONDS))


@lru_cache(maxsize=2)
def _day(number: int) -> str:
    return datetime.fromtimestamp(number * DAY_SECONDS, timezone.utc).strftime("%Y-%m-%d")


class UsageBook:
    """Adds up what ends, and cuts it into reports."""

    def __init__(self, day: Callable[[], str] = today) -> None:
        self._day = day
        self._rows: dict[UsageKey, Totals] = {}
        self._open: UsageReport | None = None
        self._number = 0

    def add(self, tenant: str, model: str, used: Usage) -> None:
        """One request has ended."""
        key = UsageKey(self._day(), tenant, model)
        if key not in self._rows and len(self._rows) >= MAX_ROWS:
            key = UsageKey(key.day, tenant, "")
        row = self._rows.setdefault(key, Totals())
        row.requests += 1
        row.prompt_tokens += used.prompt_tokens
        row.cached_tokens += used.cached_tokens
        row.completion_tokens += used.completion_tokens

    def report(self) -> UsageReport | None:
        """What is to be told next: the last report until `told`, then what came since; None when nothing did."""
        if self._open is None and self._rows:
            self._number += 1
            self._open, self._rows = UsageReport(self._number, self._rows), {}
        return self._open

    def told(self, number: int) -> None:
        """The report of this number was heard."""
        if self._open is not None and self._open.number == number:
            self._open = None

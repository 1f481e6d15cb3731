"""The last hour in numbers: one row every few seconds, the oldest makes way."""

import math
import statistics
from array import array
from collections.abc import Iterable, Mapping, Sequence

from polyfleet.v1 import operations_pb2

HOUR_SECONDS = 3600.0
STEP_SECONDS = 10.0  # between rows that are kept
RECENT_SECONDS = 300.0  # of requests that ended, whose times are told
ROWS = int(HOUR_SECONDS / STEP_SECONDS)


class Columns:
    """Numbers over time, a column each; one that is not known is None. 8 bytes each: a thousand devices fit."""

    def __init__(self, *names: str) -> None:
        self._at = array("d")  # Unix time
        self._columns = {name: array("d") for name in names}

    def add(self, at: float, row: Mapping[str, float | None]) -> None:
        """Keep a row, if the last one is old enough or there is none; those of a time to come go: a clock was set."""
        while self._at and self._at[-1] > at + STEP_SECONDS:
            for column in (self._at, *self._columns.values()):
                column.pop()
        if self._at and at - self._at[-1] < STEP_SECONDS - 0.5:
            return
        for column, value in ((self._at, at), *((self._columns[name], value) for name, value in row.items())):
            column.append(math.nan if value is None else value)
            if len(column) > ROWS:
                column.pop(0)

    def told(self) -> dict[str, list[float | None]]:
        """All columns by name, `at` among them."""
        columns = {"at": self._at, **self._columns}
        return {
            name: [None if math.isnan(value) else round(value, 4) for value in column]
            for name, column in columns.items()
        }


def quantiles(values: Sequence[float]) -> tuple[float | None, float | None]:
    """The median and the 99th percentile; None where there are none."""
    if len(values) < 2:
        return (values[0], values[0]) if values else (None, None)
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    return cuts[49], cuts[98]


def latencies(ended: Iterable[operations_pb2.RequestRecord], now: float) -> dict[str, float | None]:
    """Of requests that ended lately, in seconds: to the first token, and from one token to the next."""
    first, token = list[float](), list[float]()
    for each in ended:
        if each.began_unix_seconds + each.seconds < now - RECENT_SECONDS or not each.HasField("first_token_seconds"):
            continue
        first.append(each.first_token_seconds)
        if each.completion_tokens > 1:
            token.append((each.seconds - each.first_token_seconds) / (each.completion_tokens - 1))
    (first_p50, first_p99), (token_p50, token_p99) = quantiles(first), quantiles(token)
    return {"first_p50": first_p50, "first_p99": first_p99, "token_p50": token_p50, "token_p99": token_p99}

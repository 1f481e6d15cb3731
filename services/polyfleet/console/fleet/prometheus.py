"""A Prometheus that has the fleet's metrics: which alerts fire, and the last hour's lines."""

import asyncio
import json
import logging
import math
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any

from polyfleet.console.fleet.conditions import Condition, conditions_in
from polyfleet.console.fleet.history import HOUR_SECONDS, STEP_SECONDS
from polyfleet.process.tasks import end

EVERY_SECONDS = 10.0  # between looks, at least
FORGOTTEN_SECONDS = 60.0  # without a look: then nobody saw what has changed since
TIMEOUT_SECONDS = 5.0
MAX_BYTES = 8 * 2**20
_QUANTILE = "histogram_quantile({share}, sum by (le) (rate({name}_bucket[5m])))"
_FIRST, _TOKEN = "polyfleet_time_to_first_token_seconds", "polyfleet_time_per_output_token_seconds"
QUERIES = {  # the series of FleetView's history
    "tokens_per_second": "sum(rate(polyfleet_generation_tokens_total[1m]))",
    "running": "sum(polyfleet_requests_inflight)",
    "waiting": "sum(polyfleet_requests_queued)",
    "first_p50": _QUANTILE.format(share=0.5, name=_FIRST),
    "first_p99": _QUANTILE.format(share=0.99, name=_FIRST),
    "token_p50": _QUANTILE.format(share=0.5, name=_TOKEN),
    "token_p99": _QUANTILE.format(share=0.99, name=_TOKEN),
}
Columns = dict[str, list[float | None]]
Fetch = Callable[[str], Any]
log = logging.getLogger(__name__)


def fetch_json(address: str) -> Any:
    """What is said there. Raises OSError and ValueError."""
    with urllib.request.urlopen(address, timeout=TIMEOUT_SECONDS) as answer:  # checked by load_config
        return json.loads(answer.read(MAX_BYTES))


class Prometheus:
    """`firing` and `lines` are None before the first answer and while there is none: then `problem` says why.

    `on_news` is called behind each look. Lives in one event loop.
    """

    def __init__(self, url: str, fetch: Fetch = fetch_json, clock: Callable[[], float] = time.time) -> None:
        self.url, self._fetch, self._clock = url.rstrip("/"), fetch, clock
        self.firing: list[Condition] | None = None
        self.lines: Columns | None = None
        self.problem = ""
        self.on_news: Callable[[], object] = lambda: None
        self._looked = -math.inf
        self._task: asyncio.Task[None] | None = None

    def look(self) -> None:
        """Ask anew in the background, if the last answer is an old one."""
        if self._clock() - self._looked >= FORGOTTEN_SECONDS:
            self.firing = self.lines = None
        if self._clock() - self._looked >= EVERY_SECONDS and (self._task is None or self._task.done()):
            self._task = asyncio.create_task(self.refresh())

    async def close(self) -> None:
        """Ask no more."""
        if self._task:
            await end(self._task)

    async def refresh(self) -> None:
        """Ask now."""
        self._looked = self._clock()
        try:
            self.firing, self.lines = await asyncio.to_thread(self._ask)
            self.problem = ""
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            problem = f"Prometheus at {self.url} does not answer well: {str(error)[:200]}."
            if not self.problem:
                log.warning("%s", problem)
            self.firing, self.lines, self.problem = None, None, problem
        self.on_news()

    def _ask(self) -> tuple[list[Condition], Columns]:
        firing = conditions_in(self._data("alerts")["alerts"])
        end = self._clock() // STEP_SECONDS * STEP_SECONDS
        span = {"start": end - HOUR_SECONDS, "end": end, "step": STEP_SECONDS}
        found = {name: self._data("query_range", query=query, **span)["result"] for name, query in QUERIES.items()}
        return firing, columns(found, end)

    def _data(self, call: str, **asked: str | float) -> Any:
        answer = self._fetch(f"{self.url}/api/v1/{call}?{urllib.parse.urlencode(asked)}")
        if answer["status"] != "success":
            raise ValueError(str(answer.get("error", "no success")))
        return answer["data"]


def columns(found: Mapping[str, Any], end: float) -> Columns:
    """Range queries' results, of one series each, at the same moments; None where one has no value."""
    steps = int(HOUR_SECONDS / STEP_SECONDS)
    moments = [end - HOUR_SECONDS + STEP_SECONDS * step for step in range(steps + 1)]
    told: Columns = {"at": list(moments)}
    for name, result in found.items():
        values = {round(float(at)): float(value) for at, value in result[0]["values"]} if result else {}
        told[name] = [_finite(values.get(round(at))) for at in moments]
    return told


def _finite(value: float | None) -> float | None:
    return round(value, 4) if value is not None and math.isfinite(value) else None

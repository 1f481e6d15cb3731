"""What callers used, in the scheduler's state file: one row for each day, tenant and model."""

import sqlite3
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import datetime, timedelta, timezone

from polyfleet.v1 import fleet_pb2 as pb

KEPT_DAYS = 400
REPORTS_KEPT_SECONDS = 7 * 24 * 3600  # how long a silent gateway's last number is remembered
USAGE_TABLES = (
    "CREATE TABLE IF NOT EXISTS usage (day TEXT, tenant TEXT, model TEXT, requests INTEGER NOT NULL, "
    "prompt_tokens INTEGER NOT NULL, cached_tokens INTEGER NOT NULL, completion_tokens INTEGER NOT NULL, "
    "PRIMARY KEY (day, tenant, model)) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS usage_reports (gateway_id TEXT PRIMARY KEY, number INTEGER NOT NULL, "
    "unix_seconds INTEGER NOT NULL)",
)
_ADD = (
    "INSERT INTO usage VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET requests = requests + excluded.requests, "
    "prompt_tokens = prompt_tokens + excluded.prompt_tokens, cached_tokens = cached_tokens + excluded.cached_tokens, "
    "completion_tokens = completion_tokens + excluded.completion_tokens"
)
_SELECT = (
    "SELECT * FROM usage WHERE day >= ? AND (? = '' OR day <= ?) AND (? = '' OR tenant = ?) ORDER BY day, tenant, model"
)


class UsageTable:
    """The rows. `writing` opens a transaction, as Store has it, and raises StoreError."""

    def __init__(self, db: sqlite3.Connection, writing: Callable[[], AbstractContextManager[None]]) -> None:
        self._db, self._writing = db, writing

    def add(self, report: pb.ReportUsageRequest) -> None:
        """Add one report of a gateway, once: what has a number that it gave before is left. Raises StoreError."""
        if report.number <= self._last_number(report.gateway_id):
            return
        now = time.time()
        rows = [(each.day, each.tenant, each.model, *_sums(each)) for each in report.rows]
        with self._writing():
            self._db.executemany(_ADD, rows)
            known = (report.gateway_id, report.number, int(now))
            self._db.execute("INSERT OR REPLACE INTO usage_reports VALUES (?, ?, ?)", known)
            self._db.execute("DELETE FROM usage_reports WHERE unix_seconds < ?", (int(now) - REPORTS_KEPT_SECONDS,))
            oldest = datetime.fromtimestamp(now, timezone.utc) - timedelta(days=KEPT_DAYS)
            self._db.execute("DELETE FROM usage WHERE day < ?", (oldest.strftime("%Y-%m-%d"),))

    def _last_number(self, gateway_id: str) -> int:
        query = "SELECT number FROM usage_reports WHERE gateway_id = ?"
        row = self._db.execute(query, (gateway_id,)).fetchone()
        return int(row[0]) if row else 0

    def rows(self, first_day: str, last_day: str, tenant: str) -> list[pb.UsageRow]:
        """Those of these days (empty: no bound) and this tenant (empty: all), by day, tenant and model."""
        found = self._db.execute(_SELECT, (first_day, last_day, last_day, tenant, tenant))
        return [
            pb.UsageRow(
                day=day,
                tenant=owner,
                model=model,
                requests=requests,
                prompt_tokens=prompt,
                cached_tokens=cached,
                completion_tokens=completion,
            )
            for day, owner, model, requests, prompt, cached, completion in found
        ]


def _sums(row: pb.UsageRow) -> tuple[int, int, int, int]:
    return row.requests, row.prompt_tokens, row.cached_tokens, row.completion_tokens

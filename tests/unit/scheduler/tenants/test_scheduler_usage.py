"""Usage in the state file: sums that survive restarts, and reports that count once."""

from pathlib import Path

import pytest
import yaml

from polyfleet.scheduler.store import STATE_NAME, Store
from polyfleet.scheduler.tenants.tenant_calls import TenantCalls
from polyfleet.v1 import fleet_pb2 as pb
from polyfleet.wire.limits import FieldError

ROW = pb.UsageRow(day="2026-11-28", tenant="a", model="m", requests=1, prompt_tokens=9, cached_tokens=4)


def report(number: int, *rows: pb.UsageRow, gateway: str = "g") -> pb.ReportUsageRequest:
    return pb.ReportUsageRequest(gateway_id=gateway, number=number, rows=rows)


def test_reports_add_up_once_and_survive(tmp_path: Path) -> None:
    store = Store(tmp_path / STATE_NAME)
    calls = TenantCalls(store.usage)
    for number in (1, 1, 2):
        calls.report(report(number, ROW))
    calls.report(report(1, ROW, gateway="other"))
    store.close()
    again = TenantCalls(Store(tmp_path / STATE_NAME).usage)
    again.report(report(2, ROW))  # its answer was lost in the restart
    (row,) = again.used(pb.UsageRequest()).rows
    assert (row.requests, row.prompt_tokens, row.cached_tokens, row.completion_tokens) == (3, 27, 12, 0)


def test_days_and_tenants_are_chosen(tmp_path: Path) -> None:
    calls = TenantCalls(Store(tmp_path / STATE_NAME).usage)
    other = pb.UsageRow(day="2026-11-27", tenant="b'; DROP TABLE usage; --", model="m", requests=5)
    calls.report(report(1, ROW, other))
    assert [row.requests for row in calls.used(pb.UsageRequest()).rows] == [5, 1]
    assert [row.tenant for row in calls.used(pb.UsageRequest(first_day="2026-11-28")).rows] == ["a"]
    assert [row.day for row in calls.used(pb.UsageRequest(last_day="2026-11-27")).rows] == ["2026-11-27"]
    assert [row.requests for row in calls.used(pb.UsageRequest(tenant=other.tenant)).rows] == [5]


@pytest.mark.parametrize(
    ("bad", "field"),
    [
        (pb.ReportUsageRequest(), "gateway_id"),
        (report(0, ROW), "number"),
        (report(1, pb.UsageRow(day="yesterday")), "rows[0].day"),
        (report(1, pb.UsageRow(day="2026-11-28", requests=2**60)), "rows[0]"),
    ],
)
def test_nonsense_is_refused_and_nothing_of_it_kept(tmp_path: Path, bad: pb.ReportUsageRequest, field: str) -> None:
    calls = TenantCalls(Store(tmp_path / STATE_NAME).usage)
    with pytest.raises(FieldError) as caught:
        calls.report(bad)
    assert caught.value.field == field
    assert not calls.used(pb.UsageRequest()).rows


def test_leases_come_of_the_keys_file_as_long_as_it_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"
    keys = {"keys": [{"id": "a", "hash": "0" * 64}], "tenants": [{"id": "a", "max_concurrent": 3}]}
    path.write_text(yaml.safe_dump(keys))
    calls = TenantCalls(Store(tmp_path / STATE_NAME).usage, path)
    assert [each.max_concurrent for each in calls.report(report(0)).leases] == [3]
    path.write_text("nonsense: [")
    assert not calls.report(report(0)).leases

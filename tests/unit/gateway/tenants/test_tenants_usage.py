"""What was used adds up, is reported until it is heard, and once."""

import logging
from typing import Any

import grpc
import pytest

from polyfleet.gateway.tenants.quotas import Quotas
from polyfleet.gateway.tenants.reporter import UsageReporter
from polyfleet.gateway.tenants.usage import MAX_ROWS, UsageBook, today
from polyfleet.process.keys import Tenant
from polyfleet.v1 import fleet_pb2 as pb
from polyfleet.wire.answers import Usage

DAY = "2026-01-31"


@pytest.mark.parametrize(
    ("seconds", "day"), [(0.0, "1970-01-01"), (1772323199.9, "2026-02-28"), (1772323200.0, "2026-03-01")]
)
def test_a_day_begins_at_midnight_in_utc(monkeypatch: pytest.MonkeyPatch, seconds: float, day: str) -> None:
    monkeypatch.setattr("time.time", lambda: seconds)
    assert today() == day


def test_reports_are_repeated_until_they_were_told() -> None:
    book = UsageBook(lambda: DAY)
    assert book.report() is None
    book.add("a", "m", Usage(10, 4, 3))
    book.add("a", "m", Usage(1, 0, 2))
    first = book.report()
    book.add("b", "m", Usage(5, 0, 5))
    assert first is not None
    assert book.report() is first
    (((key, totals)),) = first.rows.items()
    assert (tuple(key), totals.requests, totals.prompt_tokens) == ((DAY, "a", "m"), 2, 11)
    assert (totals.cached_tokens, totals.completion_tokens) == (4, 5)
    book.told(first.number)
    second = book.report()
    assert second is not None
    assert (second.number, [key.tenant for key in second.rows]) == (first.number + 1, ["b"])


def test_a_long_outage_holds_so_many_rows_and_loses_no_token() -> None:
    book = UsageBook(lambda: DAY)
    for number in range(MAX_ROWS + 50):
        book.add("a", f"m{number}", Usage(1, 0, 1))
    report = book.report()
    assert report is not None
    assert len(report.rows) == MAX_ROWS + 1
    assert sum(each.prompt_tokens for each in report.rows.values()) == MAX_ROWS + 50


class Down(grpc.aio.AioRpcError):
    """As from a scheduler that is not there."""

    def __init__(self) -> None:
        nothing = grpc.aio.Metadata()
        super().__init__(grpc.StatusCode.UNAVAILABLE, nothing, nothing, "nobody listens", "")


async def test_the_reporter_tells_once_and_takes_leases(caplog: pytest.LogCaptureFixture) -> None:
    told: list[Any] = []
    down = True

    async def tell(request: pb.ReportUsageRequest) -> pb.ReportUsageResponse:
        if down:
            raise Down
        told.append(request)
        return pb.ReportUsageResponse(leases=[pb.TenantLease(tenant="a", max_concurrent=0)])

    quotas, book = Quotas(lambda: {"a": Tenant("a", max_concurrent=3)}), UsageBook(lambda: DAY)
    reporter = UsageReporter(tell, quotas, book)
    book.add("a", "m", Usage(7, 0, 1))
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            await reporter.report()
    assert len(caplog.records) == 1  # said once
    quotas.release(quotas.claim("a"))
    down = False
    await reporter.report()
    await reporter.report()
    assert [len(each.rows) for each in told] == [1, 0]
    assert (told[0].number, told[0].rows[0].prompt_tokens) == (1, 7)
    with pytest.raises(Exception, match="as many as it may have"):
        quotas.claim("a")

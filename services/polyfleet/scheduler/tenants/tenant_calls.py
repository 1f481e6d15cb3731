"""The calls of Fleet about tenants: gateways report what was used and get leases, operators ask for the sums."""

import logging
import re
import time
from collections.abc import Callable
from pathlib import Path

from polyfleet.process.config import ConfigError
from polyfleet.process.keys import Tenant, read_keys
from polyfleet.scheduler.request_log import RequestLog, check_records
from polyfleet.scheduler.tenants.leases import Leases
from polyfleet.scheduler.tenants.usage_table import UsageTable
from polyfleet.v1 import fleet_pb2 as pb
from polyfleet.wire.limits import FieldError

MAX_TENANT_CHARACTERS = 128
MAX_COUNT = 2**53
DAY = re.compile(r"\d{4}-\d{2}-\d{2}")
log = logging.getLogger(__name__)


class TenantCalls:
    """Answers them. `keys_file` is that of the gateways; without one nobody has quotas."""

    def __init__(
        self,
        usage: UsageTable,
        keys_file: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
        requests: RequestLog | None = None,
    ) -> None:
        self._usage, self._keys_file, self._clock = usage, keys_file, clock
        self._requests = requests or RequestLog()
        self._leases = Leases()

    def report(self, request: pb.ReportUsageRequest) -> pb.ReportUsageResponse:
        """Write down what was used and say what may be. Raises FieldError and StoreError."""
        _check(request)
        if request.rows:
            self._usage.add(request)
        self._requests.report(request.gateway_id, request.ended, request.running, self._clock())
        demands = {each.tenant: each.requests for each in request.demands}
        self._leases.report(request.gateway_id, demands, self._clock())
        return pb.ReportUsageResponse(leases=self._leases.leases(request.gateway_id, self._tenants()))

    def _tenants(self) -> tuple[Tenant, ...]:
        """Those that the keys file names; none while it can't be read: gateways go on with what they have read."""
        try:
            return read_keys(self._keys_file).tenants if self._keys_file else ()
        except ConfigError as error:
            log.error("No quotas are leased. %s", error)
            return ()

    def used(self, request: pb.UsageRequest) -> pb.UsageResponse:
        """The sums. Raises FieldError."""
        for name, day in (("first_day", request.first_day), ("last_day", request.last_day)):
            if day and not DAY.fullmatch(day):
                raise FieldError(name, f"must be a day like 2026-01-31, not {day!r:.40}")
        return pb.UsageResponse(rows=self._usage.rows(request.first_day, request.last_day, request.tenant))


def _check(request: pb.ReportUsageRequest) -> None:
    if not 1 <= len(request.gateway_id) <= MAX_TENANT_CHARACTERS:
        raise FieldError("gateway_id", f"must have 1 to {MAX_TENANT_CHARACTERS} characters")
    check_records("ended", request.ended)
    check_records("running", request.running)
    if request.rows and not request.number:
        raise FieldError("number", "must be 1 or more where there are rows")
    for index, row in enumerate(request.rows):
        if not DAY.fullmatch(row.day):
            raise FieldError(f"rows[{index}].day", f"must be a day like 2026-01-31, not {row.day!r:.40}")
        if max(row.requests, row.prompt_tokens, row.cached_tokens, row.completion_tokens) > MAX_COUNT:
            raise FieldError(f"rows[{index}]", f"has a count above {MAX_COUNT}")

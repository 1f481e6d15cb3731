"""The requests that gateways tell of: those that run, and the last thousand that ended. Pure; times are given."""

from collections import deque
from collections.abc import Iterable

from polyfleet.v1.operations_pb2 import ListRequestsResponse, RequestRecord
from polyfleet.wire.limits import MAX_RECORDS, FieldError

MAX_ENDED = 1000
MAX_RECORD_BYTES = 32 * 1024
SILENT_SECONDS = 10.0  # a gateway that tells nothing for so long runs nothing that is known of


def check_records(name: str, records: "Iterable[RequestRecord]") -> None:
    """Raise FieldError for records that no gateway sends."""
    for index, each in enumerate(records):
        if index >= MAX_RECORDS:
            raise FieldError(name, f"must be at most {MAX_RECORDS}")
        if (size := each.ByteSize()) > MAX_RECORD_BYTES:
            raise FieldError(f"{name}[{index}]", f"must be at most {MAX_RECORD_BYTES} bytes, not {size}")


class RequestLog:
    """Kept in memory alone: another life of the scheduler begins with none."""

    def __init__(self) -> None:
        self._ended: deque[RequestRecord] = deque(maxlen=MAX_ENDED)
        self._running: dict[str, tuple[float, list[RequestRecord]]] = {}

    def report(
        self, gateway_id: str, ended: Iterable[RequestRecord], running: Iterable[RequestRecord], now: float
    ) -> None:
        """What one gateway tells now."""
        for each in ended:
            each.gateway_id = gateway_id
            self._ended.append(each)
        mine = []
        for each in running:
            each.gateway_id = gateway_id
            mine.append(each)
        self._running[gateway_id] = (now, mine)
        self._running = {name: told for name, told in self._running.items() if now - told[0] <= SILENT_SECONDS}

    def listed(self, tenant: str, model: str, limit: int, now: float) -> ListRequestsResponse:
        """Those of a tenant and a model (empty: all)."""

        def wanted(each: RequestRecord) -> bool:
            return tenant in ("", each.tenant) and model in ("", each.model)

        running = [
            each
            for heard, records in self._running.values()
            if now - heard <= SILENT_SECONDS
            for each in records
            if wanted(each)
        ]
        running.sort(key=lambda each: each.began_unix_seconds)
        ended = [each for each in reversed(self._ended) if wanted(each)]
        return ListRequestsResponse(running=running, ended=ended[: limit or MAX_ENDED])

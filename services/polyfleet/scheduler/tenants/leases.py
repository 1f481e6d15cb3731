"""Which part of each tenant's quotas each gateway may spend: by what they want, so that none holds what others need.

Pure. A gateway that has been silent for a while counts no more; what it holds it may still spend, for a report long.
"""

from collections.abc import Iterable, Mapping
from itertools import accumulate

from polyfleet.process.keys import Tenant
from polyfleet.v1 import fleet_pb2 as pb

SILENT_SECONDS = 10.0  # without a report
SPARE = 0.1  # of a rate is split evenly, so that a gateway that wanted nothing can begin at once


class Leases:
    """What every gateway wants, as it last said. Times are of one monotonic clock, in seconds."""

    def __init__(self) -> None:
        self._demands: dict[str, dict[str, int]] = {}  # gateway -> tenant -> requests
        self._heard: dict[str, float] = {}

    def report(self, gateway_id: str, demands: Mapping[str, int], now: float) -> None:
        """This gateway wants so many requests of each tenant."""
        self._demands[gateway_id], self._heard[gateway_id] = dict(demands), now
        for each in [each for each, at in self._heard.items() if now - at > SILENT_SECONDS]:
            del self._demands[each], self._heard[each]

    def leases(self, gateway_id: str, tenants: Iterable[Tenant]) -> list[pb.TenantLease]:
        """This gateway's parts. All gateways' parts of a tenant add up to its quotas."""
        return [self._lease(gateway_id, each) for each in tenants if each.tokens_per_minute or each.max_concurrent]

    def _lease(self, gateway_id: str, tenant: Tenant) -> pb.TenantLease:
        gateways = sorted(self._demands)
        wants = [self._demands[each].get(tenant.id, 0) for each in gateways]
        mine, total = gateways.index(gateway_id), sum(wants)
        even = 1 / len(gateways)
        part = SPARE * even + (1 - SPARE) * wants[mine] / total if total else even
        lease = pb.TenantLease(tenant=tenant.id, tokens_per_minute=tenant.tokens_per_minute * part)
        if tenant.max_concurrent:
            lease.max_concurrent = apportioned(tenant.max_concurrent, wants)[mine]
        return lease


def apportioned(seats: int, wants: list[int]) -> list[int]:
    """`seats` in parts that add up to it, in proportion to `wants` (all 0: even), by largest remainders.

    As long as there are enough, each that wants any has one; and so has each other one that finds one unwanted, whose
    first request need not wait for a report.
    """
    total, enough = sum(wants), seats >= sum(want > 0 for want in wants)
    idle = list(accumulate(int(not want) for want in wants))  # so far
    firsts = [int(enough if want else idle[at] <= seats - total) for at, want in enumerate(wants)]
    left = seats - sum(firsts)
    exact = [left * want / total if total else left / len(wants) for want in wants]
    parts = [int(each) for each in exact]
    by_remainder = sorted(range(len(wants)), key=lambda each: (parts[each] - exact[each], -wants[each], each))
    for each in by_remainder[: left - sum(parts)]:
        parts[each] += 1
    return [first + part for first, part in zip(firsts, parts, strict=True)]

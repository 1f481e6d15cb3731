"""The gateway's reports to the scheduler: what tenants used and want, which requests ran; the leases that come back."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable

import grpc
from prometheus_client import CollectorRegistry

from polyfleet.gateway.demand import Demand
from polyfleet.gateway.recent import RecentRequests
from polyfleet.gateway.tenants.quotas import Lease, Quotas
from polyfleet.gateway.tenants.usage import UsageBook
from polyfleet.process.within import Within
from polyfleet.v1 import fleet_pb2 as pb

REPORT_SECONDS = 2.0
SHORTEST_PAUSE_SECONDS = 0.25
log = logging.getLogger(__name__)
Tell = Callable[[pb.ReportUsageRequest], Awaitable[pb.ReportUsageResponse]]


class UsageReporter:
    """Reports through `tell`, for ever. While nobody answers, usage adds up here and the last leases hold."""

    def __init__(
        self,
        tell: Tell,
        quotas: Quotas,
        usage: UsageBook,
        recent: RecentRequests | None = None,
        demand: Demand | None = None,
    ) -> None:
        self._tell, self._quotas, self._usage = tell, quotas, usage
        self._demand = demand or Demand(CollectorRegistry())
        self._recent = recent or RecentRequests()
        self._heard = True

    async def run(self) -> None:
        """Report every few seconds until cancelled, and soon after a request begins to wait where none did."""
        while True:
            await self.report()
            await asyncio.sleep(SHORTEST_PAUSE_SECONDS)
            with contextlib.suppress(asyncio.TimeoutError), Within(REPORT_SECONDS - SHORTEST_PAUSE_SECONDS):
                await self._demand.urgent.wait()
            self._demand.urgent.clear()

    async def report(self) -> None:
        """Once, where there is something to say."""
        report, demands, recent = self._usage.report(), self._quotas.demands(), self._recent.report()
        models = self._demand.models()
        if report is None and not demands and recent is None and not models:
            return
        ended, running = recent or ([], [])
        request = pb.ReportUsageRequest(
            number=report.number if report else 0,
            rows=[
                pb.UsageRow(
                    day=key.day,
                    tenant=key.tenant,
                    model=key.model,
                    requests=totals.requests,
                    prompt_tokens=totals.prompt_tokens,
                    cached_tokens=totals.cached_tokens,
                    completion_tokens=totals.completion_tokens,
                )
                for key, totals in (report.rows.items() if report else ())
            ],
            demands=[pb.TenantDemand(tenant=tenant, requests=wanted) for tenant, wanted in demands.items()],
            ended=ended,
            running=running,
            models=models,
            revisions=self._demand.revisions(),
        )
        try:
            answer = await self._tell(request)
        except grpc.aio.AioRpcError as error:
            if self._heard:
                log.warning("The scheduler does not take reports of usage: %s", error.details() or error.code().name)
            self._heard = False
            return
        self._heard = True
        self._recent.told(ended, running=bool(running))
        if report:
            self._usage.told(report.number)
        self._quotas.grant({each.tenant: _lease(each) for each in answer.leases})


def _lease(each: pb.TenantLease) -> Lease:
    return Lease(each.tokens_per_minute, each.max_concurrent if each.HasField("max_concurrent") else None)

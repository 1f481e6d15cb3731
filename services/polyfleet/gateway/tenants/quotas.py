"""Quotas of tenants: how many requests each may have at once, and how many tokens a minute.

Tokens are paid for as they are computed, so that nobody has to guess an answer's length: who owes some waits until time
has paid them. A gateway spends its lease of the fleet's quotas, and the last one goes on while no other comes.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from polyfleet.gateway.errors import ResourceExhausted
from polyfleet.process.keys import Tenant

RETRY_SECONDS = 1.0  # until a request of the same tenant may have ended
MINUTE = 60.0


@dataclass(frozen=True, slots=True)
class Lease:
    """This gateway's part of a tenant's quotas. `tokens_per_minute` 0: no quota; `max_concurrent` None: no quota."""

    tokens_per_minute: float = 0.0
    max_concurrent: int | None = None


FREE = Lease()


@dataclass(slots=True)
class Account:
    """One tenant at this gateway."""

    tenant: str
    running: int = 0
    refused: int = 0  # since its demand was last told
    saved: float | None = None  # tokens that it may have computed now; below zero it owes them; None: never asked
    as_of: float = 0.0

    def spend(self, num_tokens: int) -> None:
        """So many tokens were computed for it."""
        if self.saved is not None:
            self.saved -= num_tokens

    def refill(self, per_minute: float, now: float) -> float:
        """What it has at `now`, saved for a minute at most."""
        saved = per_minute if self.saved is None else self.saved + per_minute * max(0.0, now - self.as_of) / MINUTE
        self.saved, self.as_of = min(saved, per_minute), now
        return self.saved


def part(limits: Tenant, processes: int) -> Lease:
    """One process's of a tenant's quotas; each may have one request."""
    most = -(-limits.max_concurrent // processes)
    return Lease(limits.tokens_per_minute / processes, most if limits.max_concurrent else None)


class Quotas:
    """Every tenant's account. `tenants` gives those that have quotas, by id, as of now."""

    def __init__(
        self,
        tenants: Callable[[], Mapping[str, Tenant]],
        processes: int = 1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`processes`: of this gateway, which have the quotas in equal parts while there are no leases."""
        self._tenants, self._clock, self._processes = tenants, clock, processes
        self._accounts: dict[str, Account] = {}
        self._leases: dict[str, Lease] = {}

    def claim(self, tenant: str) -> Account:
        """Count one request more of this tenant, until `release`. Raises ResourceExhausted where a quota is used up."""
        account = self._accounts.setdefault(tenant, Account(tenant))
        held = self._held(tenant)
        try:
            self._check(account, held)
        except ResourceExhausted:
            account.refused += 1
            raise
        account.running += 1
        return account

    def _check(self, account: Account, held: Lease) -> None:
        if held.max_concurrent is not None and account.running >= held.max_concurrent:
            raise ResourceExhausted(
                f"Tenant {account.tenant} has {account.running} requests at once here, as many as it may have.",
                retry_after=RETRY_SECONDS,
                quota="max_concurrent",
            )
        if held.tokens_per_minute <= 0:
            account.saved = None
        elif (saved := account.refill(held.tokens_per_minute, self._clock())) <= 0:
            raise ResourceExhausted(
                f"Tenant {account.tenant} has used its tokens of this minute.",
                retry_after=max(RETRY_SECONDS, -saved * MINUTE / held.tokens_per_minute),
                quota="tokens_per_minute",
            )

    def _held(self, tenant: str) -> Lease:
        """What it may use here: the lease, and never more than the file allows; without one a process's part."""
        if (limits := self._tenants().get(tenant)) is None:
            return FREE
        lease = self._leases.get(tenant) or part(limits, self._processes)
        rates = [rate for rate in (limits.tokens_per_minute, lease.tokens_per_minute) if rate > 0]
        counts = [each for each in (limits.max_concurrent or None, lease.max_concurrent) if each is not None]
        limited = limits.tokens_per_minute > 0, limits.max_concurrent > 0
        return Lease(min(rates) if limited[0] else 0.0, min(counts) if limited[1] else None)

    def release(self, account: Account) -> None:
        """A claimed request has ended."""
        account.running -= 1
        if account.tenant not in self._tenants() and not account.running:
            self._accounts.pop(account.tenant, None)

    def grant(self, leases: Mapping[str, Lease]) -> None:
        """What this gateway may use from now on, by tenant."""
        self._leases = dict(leases)

    def demands(self) -> dict[str, int]:
        """How many requests each tenant with quotas wants to have here: what runs, and what was refused since."""
        found = {}
        for tenant in self._tenants():
            account = self._accounts.get(tenant, Account(tenant))
            found[tenant] = account.running + account.refused
            account.refused = 0
        return found

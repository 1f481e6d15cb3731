"""Whose request is next where requests wait: start-time fair queueing over tenants (Goyal, Vin and Cheng, 1997).

Each request gets a start tag: the greater of the virtual time and the finish tag of its tenant's request before; its
own finish tag lies its cost, divided by the tenant's weight, behind. Lower start tags go first, and the virtual time is
the start tag of what went last. So tenants that wait get the fleet in proportion to their weights, whatever each asks
for, and who asked for little before is not behind who asked for much.
"""

from collections.abc import Callable, Mapping

from polyfleet.process.keys import Tenant

MAX_KEPT = 10_000  # tenants whose last finish tag is remembered; those that the virtual time has passed are forgotten


class FairOrder:
    """Start tags. `tenants` gives those that have weights of their own, by id, as of now; others have weight 1.

    `num_tenants` says how many there may be: fewer than two have nothing to share.
    """

    def __init__(
        self, tenants: Callable[[], Mapping[str, Tenant]] = dict, num_tenants: Callable[[], int] = lambda: 1
    ) -> None:
        self._tenants, self._num_tenants = tenants, num_tenants
        self._now = 0.0
        self._finish: dict[str, float] = {}

    @property
    def shared(self) -> bool:
        """Whether there may be several tenants."""
        return self._num_tenants() > 1

    def tag(self, tenant: str, cost: float) -> float:
        """The start tag of this tenant's next request. `cost` is what it takes, in tokens; above zero."""
        limits = self._tenants().get(tenant)
        start = max(self._now, self._finish.get(tenant, 0.0))
        self._finish[tenant] = start + cost / (limits.weight if limits else 1.0)
        if len(self._finish) > MAX_KEPT:
            self._finish = {each: finish for each, finish in self._finish.items() if finish > self._now}
        return start

    def passed(self, tag: float) -> None:
        """A request of this start tag has got its turn."""
        self._now = max(self._now, tag)

"""Quotas: tokens a minute and requests at once, of the file and of the lease."""

import pytest

from polyfleet.gateway.errors import ResourceExhausted
from polyfleet.gateway.tenants.quotas import Lease, Quotas
from polyfleet.process.keys import Tenant


class Rig:
    """Quotas of tenants that the test sets, at a time that it sets."""

    def __init__(self, *tenants: Tenant) -> None:
        self.tenants, self.now = {each.id: each for each in tenants}, 0.0
        self.quotas = Quotas(lambda: self.tenants, clock=lambda: self.now)

    def refusal(self, tenant: str) -> ResourceExhausted:
        with pytest.raises(ResourceExhausted) as caught:
            self.quotas.claim(tenant)
        return caught.value


def test_so_many_requests_at_once() -> None:
    rig = Rig(Tenant("a", max_concurrent=2))
    first, _ = rig.quotas.claim("a"), rig.quotas.claim("a")
    refusal = rig.refusal("a")
    assert (refusal.quota, refusal.retry_after) == ("max_concurrent", 1.0)
    for _ in range(5):
        rig.quotas.claim("b")  # without quotas
    rig.quotas.release(first)
    rig.quotas.claim("a")


def test_without_leases_the_processes_of_a_gateway_share_the_quotas() -> None:
    tenants = {"a": Tenant("a", max_concurrent=3, tokens_per_minute=600), "b": Tenant("b", max_concurrent=1)}
    quotas = Quotas(lambda: tenants, 2, clock=lambda: 0.0)
    account = quotas.claim("a")
    quotas.claim("b")
    account.spend(300)
    with pytest.raises(ResourceExhausted) as caught:
        quotas.claim("a")
    assert caught.value.quota == "tokens_per_minute"
    quotas.grant({"a": Lease(600.0, 3)})
    for _ in range(2):
        account.saved = 1.0
        quotas.claim("a")
    with pytest.raises(ResourceExhausted):
        quotas.claim("a")


def test_who_owes_tokens_waits_until_time_has_paid_them() -> None:
    rig = Rig(Tenant("a", tokens_per_minute=600))
    account = rig.quotas.claim("a")
    account.spend(900)
    refusal = rig.refusal("a")
    assert (refusal.quota, refusal.retry_after) == ("tokens_per_minute", 30.0)
    rig.now = 29.0
    rig.refusal("a")
    rig.now = 31.0
    rig.quotas.claim("a").spend(1)


def test_no_more_than_a_minute_is_saved() -> None:
    rig = Rig(Tenant("a", tokens_per_minute=600))
    rig.quotas.claim("a")
    rig.now = 3600.0
    rig.quotas.claim("a").spend(600)
    rig.refusal("a")


def test_a_lease_holds_until_another_comes_and_never_above_the_file() -> None:
    rig = Rig(Tenant("a", max_concurrent=4))
    rig.quotas.grant({"a": Lease(max_concurrent=1)})
    rig.quotas.claim("a")
    rig.refusal("a")
    rig.quotas.grant({"a": Lease(max_concurrent=0)})
    rig.refusal("a")
    rig.quotas.grant({"a": Lease(max_concurrent=100)})
    for _ in range(3):
        rig.quotas.claim("a")
    rig.refusal("a")
    rig.tenants = {}  # the file was changed: no quotas any more
    rig.quotas.claim("a")


def test_demands_count_what_was_refused_once() -> None:
    rig = Rig(Tenant("a", max_concurrent=1), Tenant("b"))
    rig.quotas.claim("a")
    rig.refusal("a")
    assert rig.quotas.demands() == {"a": 2, "b": 0}
    assert rig.quotas.demands() == {"a": 1, "b": 0}

"""Leases: every gateway's part of a quota, which add up to it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyfleet.process.keys import Tenant
from polyfleet.scheduler.tenants.leases import SILENT_SECONDS, Leases, apportioned

TENANT = Tenant("a", tokens_per_minute=1000, max_concurrent=10)


@settings(deadline=None, max_examples=200)
@given(st.integers(1, 500), st.lists(st.integers(0, 1000), min_size=1, max_size=12))
def test_seats_add_up_and_who_wants_some_has_one_while_there_are_enough(seats: int, wants: list[int]) -> None:
    parts = apportioned(seats, wants)
    assert sum(parts) == seats
    enough = seats >= sum(want > 0 for want in wants)
    assert all(parts[at] for at, want in enumerate(wants) if want and enough)
    for mine, want in zip(parts, wants, strict=True):
        for other, less in zip(parts, wants, strict=True):
            assert want < less or mine >= other - 1


@pytest.mark.parametrize(
    ("seats", "wants", "parts"),
    [
        (4, [20, 0, 0, 0], [4, 0, 0, 0]),  # all callers on the connections of one: the others hold none of its seats
        (5, [3, 0, 0], [3, 1, 1]),
        (5, [4, 0, 0], [4, 1, 0]),
        (4, [900, 1, 0, 0], [3, 1, 0, 0]),
        (6, [0, 0, 0], [2, 2, 2]),
        (2, [0, 0, 0], [1, 1, 0]),
        (2, [5, 5, 5], [1, 1, 0]),
    ],
)
def test_nobody_holds_seats_that_others_want(seats: int, wants: list[int], parts: list[int]) -> None:
    assert apportioned(seats, wants) == parts


def test_rates_follow_what_is_wanted() -> None:
    leases = Leases()
    leases.report("g1", {"a": 30}, 0.0)
    leases.report("g2", {"a": 10}, 0.0)
    leases.report("g3", {}, 0.0)
    rates = [leases.leases(each, [TENANT])[0].tokens_per_minute for each in ("g1", "g2", "g3")]
    assert sum(rates) == pytest.approx(1000)
    assert rates[0] > rates[1] > rates[2] > 0
    seats = [leases.leases(each, [TENANT])[0].max_concurrent for each in ("g1", "g2", "g3")]
    assert (sum(seats), seats[2]) == (10, 0)


def test_a_silent_gateways_part_goes_to_the_others() -> None:
    leases = Leases()
    leases.report("g1", {"a": 5}, 0.0)
    leases.report("g2", {"a": 5}, 0.0)
    leases.report("g2", {"a": 5}, SILENT_SECONDS + 1)
    (lease,) = leases.leases("g2", [TENANT, Tenant("free")])
    assert (lease.tokens_per_minute, lease.max_concurrent) == (1000, 10)


def test_no_quota_stays_none() -> None:
    leases = Leases()
    leases.report("g", {}, 0.0)
    (lease,) = leases.leases("g", [Tenant("a", tokens_per_minute=60)])
    assert not lease.HasField("max_concurrent")
    (lease,) = leases.leases("g", [Tenant("a", max_concurrent=6)])
    assert lease.tokens_per_minute == 0

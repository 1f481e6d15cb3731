"""Start-time fair queueing: shares by weight, whatever each tenant asks for."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from polyfleet.gateway.tenants.fairness import MAX_KEPT, FairOrder
from polyfleet.process.keys import Tenant


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.floats(0.5, 8), min_size=2, max_size=4),
    st.lists(st.lists(st.integers(1, 50), min_size=60, max_size=60), min_size=4, max_size=4),
)
def test_backlogged_tenants_get_work_in_proportion(weights: list[float], costs: list[list[int]]) -> None:
    """Between two that have work waiting, work done by weight differs by no more than a request of each."""
    order = FairOrder(lambda: {str(i): Tenant(str(i), weight=weight) for i, weight in enumerate(weights)})
    tagged = sorted((order.tag(str(i), cost), i, cost) for i in range(len(weights)) for cost in costs[i])
    done, left = Counter[int](), Counter(i for _, i, _ in tagged)
    for tag, i, cost in tagged:
        order.passed(tag)
        done[i] += cost
        left[i] -= 1
        if not all(left[each] for each in range(len(weights))):
            break
        for j in range(len(weights)):
            most = max(costs[i]) / weights[i] + max(costs[j]) / weights[j]
            assert abs(done[i] / weights[i] - done[j] / weights[j]) <= most + 1e-6


def test_who_was_away_has_saved_nothing() -> None:
    order = FairOrder()
    for _ in range(100):
        order.passed(order.tag("a", 10))
    late = [order.tag("b", 10) for _ in range(3)]
    assert late[0] >= 990  # not 0, which would let it go first a hundred times
    assert order.tag("a", 10) < late[2]


def test_tenants_that_are_gone_are_forgotten() -> None:
    order = FairOrder()
    for number in range(3 * MAX_KEPT):
        order.passed(order.tag(f"t{number}", 1))
        order.passed(number + 2.0)
    assert len(order._finish) <= MAX_KEPT + 1

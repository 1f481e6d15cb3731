"""Pools of the chart that share a model's requests: who fails more of them than the others loses its share."""

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest

from polyfleet.cli.commands.rollout import deployment_record
from polyfleet.scheduler.config import PoolConfig, SchedulerConfig, pool_wishes
from polyfleet.scheduler.deployments.pool_shares import PoolShares, taken_back
from polyfleet.scheduler.deployments.rollout import ERROR_SECONDS
from polyfleet.scheduler.deployments.upkeep import Upkeep
from polyfleet.scheduler.fleet.demand import Demand, Outcomes
from polyfleet.scheduler.fleet.registry import POOLS_REVISION, Registry
from polyfleet.scheduler.metrics import SchedulerMetrics, SchedulerState
from polyfleet.scheduler.store import Store
from polyfleet.v1 import fleet_pb2 as pb


class Pools:
    """Pools of one model with these shares, and how their sequences have fared."""

    def __init__(self, **shares: int) -> None:
        self.outcomes = defaultdict[str, Outcomes](Outcomes)
        self._follows = PoolShares(lambda name, number: self.outcomes[name] if number == POOLS_REVISION else Outcomes())
        pools = {name: PoolConfig("m", "cpu", traffic_percent=percent) for name, percent in shares.items()}
        self.wishes = {each.name: each for each in pool_wishes(SchedulerConfig(pools=pools))}

    def at(self, now: float, **outcomes: tuple[int, int]) -> dict[str, int]:
        """The shares after a look at this time."""
        self.outcomes |= {name: Outcomes(*each) for name, each in outcomes.items()}
        self.wishes |= {each.name: each for each in self._follows.step(self.wishes.values(), now)}
        return {name: each.traffic_percent for name, each in self.wishes.items()}


def test_one_that_fails_more_loses_its_share_to_the_largest_with_the_reason() -> None:
    pools = Pools(a=70, b=10, c=20)
    assert pools.at(0, a=(1000, 10), b=(9, 9)) == {"a": 70, "b": 10, "c": 20}  # of before: nobody knows when
    assert pools.at(1, a=(1100, 11), b=(13, 13)) == {"a": 70, "b": 10, "c": 20}  # 4 may be chance
    assert pools.at(2, a=(1200, 12), b=(29, 19)) == {"a": 80, "b": 0, "c": 20}
    said = "Its 10 % were taken back, and pool a serves them: It failed 10 of 20 sequences, where 1.0% of the others"
    assert taken_back(pools.wishes["b"]) == f"{said} failed."
    assert not taken_back(pools.wishes["a"])
    assert pools.at(3, b=(40, 30)) == {"a": 80, "b": 0, "c": 20}


def test_the_largest_keeps_its_share_and_of_equal_ones_the_worse_loses_it() -> None:
    pools = Pools(a=90, b=10)
    pools.at(0)
    assert pools.at(1, a=(100, 90), b=(10, 0)) == {"a": 90, "b": 10}
    equal = Pools(a=50, b=50)
    equal.at(0)
    assert equal.at(1, a=(100, 90), b=(100, 0)) == {"a": 0, "b": 100}


@pytest.mark.parametrize("others", [(100, 20), (100, 80)])
def test_what_fails_as_much_as_the_others_or_long_ago_is_no_reason(others: tuple[int, int]) -> None:
    pools = Pools(a=90, b=10)
    pools.at(0)
    assert pools.at(1, a=others, b=(100, 24)) == {"a": 90, "b": 10}
    pools.at(2 + ERROR_SECONDS)
    assert pools.at(3 + ERROR_SECONDS, b=(110, 28)) == {"a": 90, "b": 10}


def test_one_alone_and_those_without_shares_are_let_be() -> None:
    alone = Pools(a=100, b=0)
    alone.at(0)
    assert alone.at(1, a=(100, 100)) == {"a": 100, "b": 0}
    wishes = pool_wishes(SchedulerConfig(pools={name: PoolConfig("m", "cpu") for name in "ab"}))
    follows = PoolShares(lambda *_: Outcomes(100, 100))
    assert [follows.step(wishes, now) for now in (0.0, 1.0)] == [[], []]


def reporting(demand: Demand) -> Callable[[int, int], None]:
    def report(sequences: int, errors: int) -> None:
        totals = [
            pb.RevisionTotals(deployment="new", revision=POOLS_REVISION, sequences=sequences, errors=errors),
            pb.RevisionTotals(deployment="old", revision=POOLS_REVISION, sequences=10 * sequences),
        ]
        demand.report(pb.ReportUsageRequest(gateway_id="g", revisions=totals), 0.0)

    return report


def test_gateways_reports_take_a_share_back_and_snapshot_metric_and_list_show_it(tmp_path: Path) -> None:
    pools = {name: PoolConfig("m", "cpu", traffic_percent=percent) for name, percent in (("new", 10), ("old", 90))}
    registry, demand = Registry("e", pool_wishes(SchedulerConfig(pools=pools))), Demand()
    upkeep = Upkeep(Store(tmp_path / "fleet.sqlite"), registry, demand, lambda: 0.0)
    report = reporting(demand)
    for sequences, errors in ((0, 0), (10, 0), (20, 6)):
        report(sequences, errors)
        upkeep.follow((), (), {})
    snapshot = registry.snapshot()
    assert [(each.name, each.traffic_percent) for each in snapshot.pools] == [("new", 0), ("old", 100)]
    registry.sweep(0.0)  # which tells anew how pools are
    assert taken_back(registry.pools[0])
    families = SchedulerMetrics(lambda: SchedulerState(snapshot, 0, (), 1)).collect()
    back = next(each for each in families if each.name == "polyfleet_rollout_taken_back")
    assert {each.labels["deployment"]: each.value for each in back.samples} == {"new": 1, "old": 0}
    new, old = (deployment_record(snapshot, each) for each in snapshot.pools)
    assert (new["traffic_percent"], old["traffic_percent"]) == (0, 100)
    assert new["rollout"].startswith("pool of the chart: 0 % of m's requests. Its 10 % were taken back, and pool old")
    assert old["rollout"] == "pool of the chart: 100 % of m's requests."

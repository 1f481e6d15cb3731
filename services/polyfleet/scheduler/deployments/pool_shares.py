"""Shares of the chart's pools: one that fails more requests than the others of its model loses its share. Pure.

Each such pool is a revision of its model. What was taken back is remembered here alone: a scheduler that begins anew
gives what its configuration says.
"""

from collections import defaultdict
from collections.abc import Iterable

from polyfleet.scheduler.deployments.rollout import Fared, OutcomesOf
from polyfleet.scheduler.fleet.demand import Outcomes
from polyfleet.scheduler.fleet.registry import POOLS_REVISION
from polyfleet.scheduler.revisions import copy_of
from polyfleet.v1 import fleet_pb2 as pb


class PoolShares:
    """Follows the pools that have shares. `outcomes` tells how the sequences of each have fared."""

    def __init__(self, outcomes: OutcomesOf) -> None:
        self._outcomes = outcomes
        self._fared = defaultdict[str, Fared](Fared)

    def step(self, pools: Iterable[pb.ModelDeployment], now: float) -> list[pb.ModelDeployment]:
        """The pools that change now: one that loses its share, with the reason, and the one that gets it.

        The pool with the most requests of a model keeps them: there is nothing better known to go back to.
        """
        by_model = defaultdict[str, list[pb.ModelDeployment]](list)
        for pool in pools:
            if pool.traffic_percent:
                by_model[pool.model_name].append(pool)
        return [changed for sharing in by_model.values() for changed in self._step(sharing, now)]

    def _step(self, sharing: list[pb.ModelDeployment], now: float) -> list[pb.ModelDeployment]:
        counted = {each.name: self._outcomes(each.name, POOLS_REVISION) for each in sharing}
        for pool in sharing:
            others = sum((it for name, it in counted.items() if name != pool.name), Outcomes())
            self._fared[pool.name].note(counted[pool.name], others, now)
        for pool in sorted(sharing, key=lambda each: each.traffic_percent):
            rest = [each for each in sharing if each is not pool]
            heir = max(rest, key=lambda each: each.traffic_percent, default=pool)
            problem = self._fared[pool.name].problem()
            if problem and heir is not pool and pool.traffic_percent <= heir.traffic_percent:
                return [_without_share(pool, heir, problem), _with_share(heir, pool.traffic_percent)]
        return []


def taken_back(pool: pb.ModelDeployment) -> str:
    """Why a pool has lost its share, as a sentence; empty where it has not."""
    return next((each.problem for each in pool.revisions), "")


def _without_share(pool: pb.ModelDeployment, heir: pb.ModelDeployment, problem: str) -> pb.ModelDeployment:
    changed = copy_of(pool)
    changed.traffic_percent = 0
    said = f"Its {pool.traffic_percent} % were taken back, and pool {heir.name} serves them: {problem}"
    changed.revisions.add(number=POOLS_REVISION, problem=said)
    return changed


def _with_share(pool: pb.ModelDeployment, more: int) -> pb.ModelDeployment:
    changed = copy_of(pool)
    changed.traffic_percent += more
    return changed

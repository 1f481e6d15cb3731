"""Keeps stored deployments up with what happens to them: revisions, numbers of workers, problems shown."""

import logging
from collections.abc import Callable, Mapping, Sequence

from polyfleet.scheduler.deployments.autoscaling import Scaling, worker_load
from polyfleet.scheduler.deployments.pool_shares import PoolShares, taken_back
from polyfleet.scheduler.deployments.rollout import Rollouts
from polyfleet.scheduler.fleet.demand import Demand
from polyfleet.scheduler.fleet.record import Record
from polyfleet.scheduler.fleet.registry import Registry
from polyfleet.scheduler.launcher.launch import LauncherReport
from polyfleet.scheduler.revisions import newest_problem
from polyfleet.scheduler.store import Store, StoreError
from polyfleet.v1 import fleet_pb2 as pb

log = logging.getLogger(__name__)


def _log_problem(deployment: pb.ModelDeployment) -> None:
    """Say that a deployment can't have all its workers, and why, or that it can again."""
    fields = {"deployment": deployment.name, "workers": deployment.workers}
    if deployment.problem:
        log.warning("A deployment can't have all its workers: %s", deployment.problem, extra=fields)
    else:
        log.info("Nothing hinders a deployment's workers any more.", extra=fields)


class Upkeep:
    """Called with each look at the fleet."""

    def __init__(self, store: Store, registry: Registry, demand: Demand, clock: Callable[[], float]) -> None:
        self._store, self._registry, self._demand, self._clock = store, registry, demand, clock
        self._rollouts = Rollouts(demand.outcomes)
        self._pool_shares = PoolShares(demand.outcomes)
        self._scalings: dict[str, Scaling] = {}
        self._problems: dict[str, str] = {}  # as last shown

    def follow(self, reports: Sequence[LauncherReport], records: Sequence[Record], problems: Mapping[str, str]) -> None:
        """Change the wishes that the fleet's state changes; show `problems`, why deployments lack workers."""
        wishes, now = {each.name: each for each in self._store.deployments()}, self._clock()
        known = (*wishes.values(), *self._registry.pools)
        self._demand.keep({each.name for each in known}, {each.model_name or each.name for each in known})
        for pool in self._pool_shares.step(self._registry.pools, now):
            if problem := taken_back(pool):
                log.error("A pool has lost its share. %s", problem, extra={"deployment": pool.name})
            self._registry.replace_pool(pool)
        for wish in self._rollouts.step(wishes.values(), reports, records, now, problems):
            if (problem := newest_problem(wish)) and wish.revision < wishes[wish.name].revision:
                log.error("A rollout failed. %s", problem, extra={"deployment": wish.name})
            wishes[wish.name] = wish
            self._put(wish)
        self._scalings = {name: it for name, it in self._scalings.items() if name in wishes}
        for wish in wishes.values():
            if wish.HasField("autoscaling"):
                self._scale(wish, records, now)
        self._show({**self._rollouts.lacks(), **problems})

    def _scale(self, wish: pb.ModelDeployment, records: Sequence[Record], now: float) -> None:
        scaling = self._scalings.setdefault(wish.name, Scaling())
        demand = self._demand.load(wish.model_name or wish.name, now)
        workers = scaling.step(wish.autoscaling, wish.workers, worker_load(records, wish.name), demand, now)
        if workers != wish.workers:
            fields = {"deployment": wish.name, "workers": workers, "before": wish.workers}
            log.info("A deployment is scaled.", extra=fields)
            wish.workers = workers
            self._put(wish)

    def _put(self, wish: pb.ModelDeployment) -> None:
        try:
            self._store.put_deployment(wish)
        except StoreError as error:  # tried again at the next look
            log.error("A deployment's new state is not stored: %s", error)

    def _show(self, problems: Mapping[str, str]) -> None:
        shown = []
        for deployment in self._store.deployments():
            deployment.problem = problems.get(deployment.name, "")
            if deployment.problem != self._problems.get(deployment.name, ""):
                _log_problem(deployment)
            shown.append(deployment)
        self._problems = dict(problems)
        self._registry.set_deployments(shown)

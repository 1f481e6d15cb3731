"""Pools of the chart that the scheduler scales: the replicas of their Deployments follow what they have to do."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import Protocol

from polyfleet.scheduler.cluster.kubernetes import KubernetesError
from polyfleet.scheduler.config import PoolConfig, autoscaling_of
from polyfleet.scheduler.deployments.autoscaling import Scaling, worker_load
from polyfleet.scheduler.fleet.demand import Demand
from polyfleet.scheduler.fleet.registry import Registry

LOOK_SECONDS = 1.0
READ_SECONDS = 15.0  # between looks at what others made of the replicas
log = logging.getLogger(__name__)


class ReplicasOf(Protocol):
    """What is asked of Kubernetes. Calls block, and raise KubernetesError."""

    def read(self, deployment: str) -> int:
        """How many are wished for."""
        ...

    def write(self, deployment: str, replicas: int) -> int:
        """Wish for so many; how many are wished for now."""
        ...


class PoolScaler:
    """Looks after the pools that say what to aim at, for ever."""

    def __init__(
        self,
        pools: Mapping[str, PoolConfig],
        replicas: ReplicasOf,
        registry: Registry,
        demand: Demand,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pools = {name: pool for name, pool in pools.items() if pool.autoscaling}
        self._replicas, self._registry, self._demand, self._clock = replicas, registry, demand, clock
        self._aims = {name: aims for name, pool in pools.items() if (aims := autoscaling_of(pool))}
        self._scalings = {name: Scaling() for name in self._pools}
        self._known: dict[str, tuple[float, int]] = {}  # when each one's replicas were last told, and how many
        self._problems: dict[str, str] = {}

    async def run(self) -> None:
        """Until cancelled."""
        while self._pools:
            for name in self._pools:
                await self.look(name)
            await asyncio.sleep(LOOK_SECONDS)

    async def look(self, name: str) -> None:
        """Once at one pool. What Kubernetes refuses is shown, and tried again."""
        pool, problem = self._pools[name], ""
        try:
            await self._follow(name, pool)
        except KubernetesError as error:
            problem = f"Pool {name} can't be scaled. {error}"
            if problem != self._problems.get(name):
                log.error("%s", problem)
        self._problems[name] = problem
        _, workers = self._known.get(name, (0.0, None))
        self._registry.show_pool(name, workers, problem)

    async def _follow(self, name: str, pool: PoolConfig) -> None:
        deployment, now = pool.kubernetes_deployment, self._clock()
        read, workers = self._known.get(name, (float("-inf"), 0))
        if now - read >= READ_SECONDS:
            workers = await asyncio.to_thread(self._replicas.read, deployment)
            self._known[name] = (now, workers)
        load = worker_load(self._registry.records, name)
        demand = self._demand.load(pool.model, now)
        wanted = self._scalings[name].step(self._aims[name], workers, load, demand, now)
        if wanted == workers:
            return
        log.info("A pool is scaled.", extra={"deployment": name, "workers": wanted, "before": workers})
        self._known[name] = (now, await asyncio.to_thread(self._replicas.write, deployment, wanted))

"""The loop that follows the wish: look at cluster and registry, reconcile, act. It knows Ray only as a `Cluster`."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine, Set
from dataclasses import replace
from typing import Any

import grpc

from polyfleet.process.channels import FleetAccess
from polyfleet.process.tasks import end
from polyfleet.process.within import Within
from polyfleet.scheduler.cluster.cluster import Cluster, ClusterError, Node
from polyfleet.scheduler.config import SchedulerConfig, fleet_id
from polyfleet.scheduler.deployments.adapters import AdapterChange, adapter_changes, tell
from polyfleet.scheduler.deployments.reconcile import Action, DrainWorker, Forget, Launch, Relaunch, Retire, reconcile
from polyfleet.scheduler.deployments.upkeep import Upkeep
from polyfleet.scheduler.fleet.demand import Demand
from polyfleet.scheduler.fleet.registry import Registry
from polyfleet.scheduler.fleet.snapshot_feed import SnapshotFeed
from polyfleet.scheduler.launcher.launch import LauncherReport, LaunchSpec, Phase, load_request
from polyfleet.scheduler.launcher.worker_client import WorkerClient
from polyfleet.scheduler.store import Store, StoreError
from polyfleet.wire.auth import is_loopback
from polyfleet.wire.ids import new_id

TICK_SECONDS = 0.5
SWEEP_SECONDS = 0.5
NODES_SECONDS = 2.0  # how long the list of nodes is trusted
ABSENCE_POLL_SECONDS = 0.05
TELL_AGAIN_SECONDS = 5.0
SILENCE_SECONDS = 10.0  # a cluster that has not listed its nodes for so long counts as gone
log = logging.getLogger(__name__)


def worker_host(fleet_address: str, node_address: str) -> str:
    """Where a spawned worker listens: on loopback for a fleet of this machine, else on its node's own address.

    A local Ray knows its node as 127.0.0.1; for a fleet that others reach the worker then listens on all addresses.
    """
    if is_loopback(fleet_address):
        return "127.0.0.1"
    return "0.0.0.0" if is_loopback(node_address) else node_address


class Controller:
    """Drives the fleet towards the store's deployments, from `run` until `shutdown`."""

    def __init__(
        self,
        config: SchedulerConfig,
        store: Store,
        registry: Registry,
        feed: SnapshotFeed,
        cluster: Cluster,
        *,
        access: FleetAccess | None = None,
        demand: Demand | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config, self._store, self._registry, self._feed = config, store, registry, feed
        self._cluster, self._access, self._clock = cluster, access or FleetAccess(), clock
        self._expected = store.workers()
        self._launches = store.launches()
        self._nodes: tuple[Node, ...] = ()
        self._nodes_at = float("-inf")
        self._stopping: dict[str, asyncio.Task[None]] = {}
        self._poked = asyncio.Event()
        self.opened = asyncio.Event()  # the cluster's launchers have been found
        self._began = clock()
        self._upkeep = Upkeep(store, registry, demand or Demand(), clock)
        self.told_apart: Set[str] = frozenset()  # workers that somebody else tells of adapters
        self._failure = "Ray has not answered yet."  # of the last look; empty when it succeeded

    # What the Fleet service asks for.

    def poke(self) -> None:
        """Look again now."""
        self._poked.set()

    def drain(self, worker_id: str) -> None:
        """Let this worker finish and stop, by its launcher if it has one; its deployment starts another."""
        launcher = next((r.spec.worker_id for r in self._cluster.reports if r.watched_id == worker_id), None)
        self._act(Retire(launcher) if launcher else DrainWorker(worker_id))
        self.poke()

    async def absence(self, patience: float) -> str:
        """Why nothing can be started or stopped, as a sentence; empty as soon as it can, `patience` seconds given."""
        deadline = self._clock() + patience
        while (reason := self._absence()) and self._clock() < deadline:
            await asyncio.sleep(ABSENCE_POLL_SECONDS)
        return reason

    def _absence(self) -> str:
        silence = self._clock() - self._nodes_at
        if not self._failure and self._feed.is_open and silence >= SILENCE_SECONDS:
            return "Ray does not answer."
        return self._failure

    async def run(self) -> None:
        """Follow the wish for ever, once the cluster could be opened, which is tried until it can."""
        sweeper = asyncio.create_task(self._sweep())
        try:
            while True:
                self._poked.clear()
                try:
                    if not self.opened.is_set():
                        await self._cluster.open(self.poke)
                        self.opened.set()
                    await self.tick()
                    self._failure = ""
                except ClusterError as error:
                    self._failure = str(error)
                    log.warning("%s Nothing is started or stopped meanwhile.", error)
                except Exception:  # a fault of ours must not end the loop that looks after the fleet
                    log.exception("Reconciling failed and is tried again.")
                with contextlib.suppress(asyncio.TimeoutError), Within(TICK_SECONDS):
                    await self._poked.wait()
        finally:
            await end(sweeper)

    async def _sweep(self) -> None:
        while True:
            self._registry.sweep(self._clock())
            await asyncio.sleep(SWEEP_SECONDS)

    async def tick(self) -> None:
        """One look and one step. Raises ClusterError when the cluster is away or another scheduler's by now."""
        if self._store.generation > self._registry.generation > 0:
            raise ClusterError("Another scheduler has taken over this one's state.")
        reports = self._reports()
        self._registry.observe(reports)
        if not self._feed.is_open and self._has_settled(reports):
            log.info("The fleet is known.", extra={"workers": len(self._registry.records)})
            self._feed.open()
        if self._feed.is_open:
            self._remember_workers()
            records = self._registry.records
            removed = {name for r in records if self._store.was_removed(name := r.info.deployment)}
            attach = {name for name, launch in self._config.accelerators.items() if launch.mode == "attach"}
            nodes, known = await self._known_nodes(), self._launches
            plan = reconcile(
                self._store.deployments(), reports, records, nodes, removed=removed, attach=attach, known=known
            )
            self._upkeep.follow(reports, records, plan.problems)
            for change in adapter_changes(self._store.deployments(), records):
                if change.worker_id not in self.told_apart:
                    self._begin(f"adapters {change.worker_id}", self._tell(change))
            for action in plan.actions:
                if isinstance(action, Launch | Relaunch):
                    await self._cluster.launch(action.spec if isinstance(action, Relaunch) else self._spec(action))
                else:
                    self._act(action)

    @property
    def reports(self) -> tuple[LauncherReport, ...]:
        """What the launchers said last."""
        return self._cluster.reports

    @property
    def num_nodes(self) -> int:
        """Nodes that are alive; 0 while the cluster does not answer."""
        return len(self._nodes) if self._clock() - self._nodes_at < SILENCE_SECONDS else 0

    def _reports(self) -> tuple[LauncherReport, ...]:
        """The launchers' reports, with what was begun here and has not reached them yet."""
        return tuple(
            replace(report, stopping=report.stopping or report.spec.worker_id in self._stopping)
            for report in self._cluster.reports
        )

    async def _known_nodes(self) -> tuple[Node, ...]:
        if self._clock() - self._nodes_at >= NODES_SECONDS:
            self._nodes = await self._cluster.nodes()
            self._nodes_at = self._clock()
        return self._nodes

    def _has_settled(self, reports: tuple[LauncherReport, ...]) -> bool:
        """Whether every worker of the scheduler's last life has said how it is, or had the time to."""
        heard = {record.info.worker_id for record in self._registry.records if record.reported}
        heard |= {report.watched_id for report in reports if report.phase is Phase.FAILED}
        return self._expected <= heard or self._clock() - self._began >= self._config.settle_seconds

    def _remember_workers(self) -> None:
        """Note who is there and what the launchers were told, those of workers that have lost theirs included."""
        present = frozenset(record.info.worker_id for record in self._registry.records if record.stream >= 0)
        launches = {worker_id: spec for worker_id, spec in self._launches.items() if worker_id in present}
        launches |= {report.spec.worker_id: report.spec for report in self._cluster.reports}
        noted = (self._expected, self._launches)
        self._expected, self._launches = present, launches
        if noted == (present, launches):
            return
        try:
            self._store.set_workers(present)
            self._store.set_launches(launches.values())
        except StoreError as error:  # the fleet runs on; a returning scheduler waits for the wrong workers a while
            log.error("The fleet's workers are not noted: %s", error)

    def _spec(self, action: Launch) -> LaunchSpec:
        config = self._config
        return LaunchSpec(
            worker_id=new_id("worker"),
            accelerator=action.accelerator,
            load=load_request(action.deployment).SerializeToString(deterministic=True),
            launch=config.launch_config(action.accelerator),
            fleet_address=config.fleet_address,
            state_dir=str(config.state_path),
            node_id=action.node.node_id,
            place=action.place,
            worker_host=worker_host(config.fleet_address, action.node.address),
            fleet_token_file=config.fleet_token_file,
            worker_token_file=config.worker_token_file,
            fleet_keys_file=config.fleet_keys_file,
            fleet_tls_dir=config.fleet_tls_dir,
            worker_tls_dir=config.worker_tls_dir,
            drain_seconds=config.drain_seconds,
            log_level=config.log_level,
            fleet_id=fleet_id(config.state_path),
        )

    # Actions that take their time.

    def _act(self, action: Action) -> None:
        """Begin an action in the background, once."""
        if isinstance(action, Retire):
            self._begin(action.launcher_id, self._retire(action.launcher_id, self._config.drain_seconds))
        elif isinstance(action, Forget):
            alive = any(node.node_id == self._node_of(action.launcher_id) for node in self._nodes)
            self._begin(f"forget {action.launcher_id}", self._cluster.end(action.launcher_id, kill=alive))
        elif isinstance(action, DrainWorker):
            self._begin(action.worker_id, self._drain_alone(action.worker_id))

    def _begin(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        if name in self._stopping:
            work.close()
            return
        task = self._stopping[name] = asyncio.create_task(work)
        task.add_done_callback(lambda done: self._ended(name, done))

    def _ended(self, name: str, task: "asyncio.Task[None]") -> None:
        self._stopping.pop(name, None)
        if not task.cancelled() and (error := task.exception()):
            log.warning("Stopping %s failed and is tried again: %s", name, error)
        self.poke()

    async def _retire(self, launcher_id: str, grace: float) -> None:
        log.info("A worker is to leave.", extra={"worker_id": launcher_id})
        await self._cluster.stop(launcher_id, grace)
        self._registry.forget(launcher_id)  # an attached worker has an id of its own, and stays
        await self._cluster.end(launcher_id, kill=True)

    async def _tell(self, change: AdapterChange) -> None:
        """Tell a worker which adapters to have; one that does not answer is told again after a while."""
        try:
            for adapter in await tell(change, self._access):
                if adapter.problem:
                    fields = {"worker_id": change.worker_id, "adapter": adapter.name}
                    log.warning("A worker can't load an adapter: %s", adapter.problem, extra=fields)
        except grpc.aio.AioRpcError as error:
            log.warning("Worker %s could not be told of its adapters: %s", change.worker_id, error.details())
            await asyncio.sleep(TELL_AGAIN_SECONDS)

    async def _drain_alone(self, worker_id: str) -> None:
        """Drain a worker that has no launcher; a call that fails is no news: it is gone, or asked again."""
        record = self._registry.record(worker_id)
        if record and record.info.address:
            with contextlib.suppress(grpc.aio.AioRpcError):
                async with WorkerClient(record.info.address, self._access) as client:
                    await client.drain(leave=True)
                    await asyncio.sleep(TICK_SECONDS)  # until its report says DRAINING

    def _node_of(self, launcher_id: str) -> str:
        return next((r.spec.node_id for r in self._cluster.reports if r.spec.worker_id == launcher_id), "")

    async def shutdown(self, grace: float) -> None:
        """Stop every launcher's worker, then the launchers. `run` must have been cancelled."""
        await end(*self._stopping.values())
        launchers = [report.spec.worker_id for report in self._cluster.reports]
        await asyncio.gather(*(self._retire(launcher_id, grace) for launcher_id in launchers))
        with contextlib.suppress(StoreError):
            self._store.set_workers(())
            self._store.set_launches(())

"""RayCluster: the nodes of the connected Ray, its launchers and their reports."""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import ray
from ray.exceptions import ActorDiedError, GetTimeoutError, RayActorError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from polyfleet.process.within import Within
from polyfleet.scheduler.cluster.cluster import ClusterError, Node
from polyfleet.scheduler.config import RESOURCE_PREFIX
from polyfleet.scheduler.launcher.launch import LauncherReport, LaunchSpec
from polyfleet.scheduler.launcher.launcher import Launcher

NAMESPACE = "polyfleet"
SCHEDULER_NAME = "polyfleet-scheduler"
REPORT_SECONDS = 15.0  # longer than a launcher waits before it repeats itself
RETRY_SECONDS = 0.5
FIRST_REPORTS_SECONDS = 20.0  # a launcher that Ray is restarting answers within
T = TypeVar("T")
log = logging.getLogger(__name__)


class RayCluster:
    """Launchers as detached, named actors of the namespace `polyfleet`."""

    def __init__(self) -> None:
        self._handles: dict[str, Any] = {}
        self._reports: dict[str, LauncherReport] = {}
        self._followers: dict[str, asyncio.Task[None]] = {}
        self._on_change: Callable[[], None] = lambda: None

    @property
    def reports(self) -> tuple[LauncherReport, ...]:
        """The last report of each launcher, new ones included."""
        return tuple(self._reports.values())

    async def open(self, on_change: Callable[[], None]) -> None:
        """Find the launchers by their names and wait a while for each one's first report."""
        self._on_change = on_change
        for name in await _in_thread(ray.util.list_named_actors):
            if name != SCHEDULER_NAME and name not in self._handles:
                self._follow(name, await _in_thread(partial(ray.get_actor, name, NAMESPACE)))
        deadline = asyncio.get_running_loop().time() + FIRST_REPORTS_SECONDS
        while self._handles.keys() - self._reports.keys() and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.05)
        log.info("Launchers found.", extra={"launchers": len(self._reports)})

    async def nodes(self) -> tuple[Node, ...]:
        """The nodes that are alive, with their `polyfleet-<accelerator>` resources as capacity."""
        return tuple(_node(entry) for entry in await _in_thread(ray.nodes) if entry["Alive"])

    async def launch(self, spec: LaunchSpec) -> None:
        """Create the launcher on its node."""
        actor = ray.remote(Launcher).options(
            name=spec.worker_id,
            namespace=NAMESPACE,
            lifetime="detached",
            max_restarts=-1,
            num_cpus=0,
            resources={RESOURCE_PREFIX + spec.accelerator: 1},
            scheduling_strategy=NodeAffinitySchedulingStrategy(spec.node_id, soft=False),
        )
        handle = await _in_thread(lambda: actor.remote(spec))
        self._reports[spec.worker_id] = LauncherReport(spec)
        self._follow(spec.worker_id, handle)

    async def stop(self, launcher_id: str, grace: float) -> None:
        """Call the launcher's `stop`, again if Ray restarts the launcher meanwhile."""
        while (handle := self._handles.get(launcher_id)) is not None:
            try:
                await _result(handle.stop.remote(grace))
                return
            except ActorDiedError:
                return
            except RayActorError:
                await asyncio.sleep(RETRY_SECONDS)

    async def end(self, launcher_id: str, *, kill: bool) -> None:
        """Stop following the launcher, and kill it for good if asked to."""
        handle = self._handles.pop(launcher_id, None)
        self._reports.pop(launcher_id, None)
        if follower := self._followers.pop(launcher_id, None):
            follower.cancel()
        if handle is not None and kill:
            with contextlib.suppress(ClusterError):
                await _in_thread(lambda: ray.kill(handle, no_restart=True))

    def _follow(self, launcher_id: str, handle: Any) -> None:
        self._handles[launcher_id] = handle
        self._followers[launcher_id] = asyncio.create_task(self._follow_reports(launcher_id, handle))

    async def _follow_reports(self, launcher_id: str, handle: Any) -> None:
        """Take over report after report until the launcher is dead for good."""
        revision = -1
        while True:
            try:
                with Within(REPORT_SECONDS):
                    report = await _result(handle.next_report.remote(revision))
            except ActorDiedError as error:
                log.error("A launcher died: %s", error, extra={"worker_id": launcher_id})
                self._handles.pop(launcher_id, None)
                self._reports.pop(launcher_id, None)
                self._on_change()
                return
            except (RayError, asyncio.TimeoutError):
                revision = -1
                await asyncio.sleep(RETRY_SECONDS)
                continue
            if self._handles.get(launcher_id) is not handle:
                return  # ended meanwhile
            if report != self._reports.get(launcher_id):
                self._reports[launcher_id] = report
                self._on_change()
            revision = report.revision


def _node(entry: dict[str, Any]) -> Node:
    resources = entry["Resources"]
    capacity = {
        name.removeprefix(RESOURCE_PREFIX): int(amount)
        for name, amount in resources.items()
        if name.startswith(RESOURCE_PREFIX)
    }
    address = entry["NodeManagerAddress"]
    return Node(entry["NodeID"], frozenset({entry["NodeManagerHostname"], address}), capacity, address)


async def _result(reference: Any) -> Any:
    """The value of an object reference, without blocking the loop."""
    return await asyncio.wrap_future(reference.future())


async def _in_thread(call: Callable[[], T]) -> T:
    """A blocking Ray call off the loop: it may wait for a head that is away. Raises ClusterError."""
    try:
        return await asyncio.to_thread(call)
    except (RayError, GetTimeoutError, ConnectionError, RuntimeError, ValueError) as error:
        raise ClusterError(f"Ray did not answer: {error}") from error

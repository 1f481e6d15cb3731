"""A `Cluster` without Ray: launchers are entries in a dict, and do what the test says."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from polyfleet.scheduler.cluster.cluster import ClusterError, Node
from polyfleet.scheduler.launcher.launch import LauncherReport, LaunchSpec, Phase


def node(name: str = "n-1", **capacity: int) -> Node:
    """A node with room for these workers: `node("n-1", cpu=2)`."""
    return Node(name, frozenset({name}), capacity)


class FakeCluster:
    """Records what it was asked: `launched`, `stopped` (launcher id, grace), `ended` (launcher id, kill).

    A stopped worker leaves at once unless `hold_stops` is set. `away` makes every call fail.
    """

    def __init__(self, *nodes: Node) -> None:
        self.node_list = nodes or (node(cpu=4),)
        self.known: dict[str, LauncherReport] = {}
        self.launched: list[LaunchSpec] = []
        self.stopped: list[tuple[str, float]] = []
        self.ended: list[tuple[str, bool]] = []
        self.away = False
        self.hold_stops = asyncio.Event()
        self.hold_stops.set()
        self._on_change: Callable[[], None] = lambda: None

    @property
    def reports(self) -> tuple[LauncherReport, ...]:
        return tuple(self.known.values())

    async def open(self, on_change: Callable[[], None]) -> None:
        self._check()
        self._on_change = on_change

    async def nodes(self) -> tuple[Node, ...]:
        self._check()
        return self.node_list

    async def launch(self, spec: LaunchSpec) -> None:
        self._check()
        self.launched.append(spec)
        self.known[spec.worker_id] = LauncherReport(spec)

    async def stop(self, launcher_id: str, grace: float) -> None:
        self.stopped.append((launcher_id, grace))
        await self.hold_stops.wait()
        if launcher_id in self.known:
            self.report(launcher_id, phase=Phase.LEFT)

    async def end(self, launcher_id: str, *, kill: bool) -> None:
        self.ended.append((launcher_id, kill))
        self.known.pop(launcher_id, None)

    def report(self, launcher_id: str, **changes: Any) -> None:
        """A launcher has news."""
        self.known[launcher_id] = replace(self.known[launcher_id], **changes)
        self._on_change()

    def _check(self) -> None:
        if self.away:
            raise ClusterError("Ray did not answer: it is away.")

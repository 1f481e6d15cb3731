"""Cluster: what the controller needs of the machines where launchers live. Free of Ray."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from polyfleet.scheduler.launcher.launch import LauncherReport, LaunchSpec


@dataclass(frozen=True, slots=True)
class Node:
    """A machine of the cluster: its names, and for how many workers of each accelerator it has room."""

    node_id: str
    hosts: frozenset[str]
    capacity: Mapping[str, int]
    address: str = "127.0.0.1"


class Cluster(Protocol):
    """Where launchers live. Calls raise ClusterError when the cluster does not answer."""

    @property
    def reports(self) -> tuple[LauncherReport, ...]:
        """The last report of each launcher, new ones included."""
        ...

    async def open(self, on_change: Callable[[], None]) -> None:
        """Find the launchers that exist; `on_change` is called after each new report from now on.

        May be called again after it failed.
        """
        ...

    async def nodes(self) -> tuple[Node, ...]:
        """The nodes that are alive."""
        ...

    async def launch(self, spec: LaunchSpec) -> None:
        """Start a launcher; it is among the reports at once."""
        ...

    async def stop(self, launcher_id: str, grace: float) -> None:
        """Have the launcher's worker finish, for at most `grace` seconds, and stop it; returns when it has left."""
        ...

    async def end(self, launcher_id: str, *, kill: bool) -> None:
        """Look after this launcher no more; `kill` ends it (and whatever it has as child)."""
        ...


class ClusterError(RuntimeError):
    """Ray did not answer, or not well."""

"""Where workers find room: the free places of all nodes. Pure."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence

from polyfleet.scheduler.cluster.cluster import Node
from polyfleet.scheduler.config import ACCELERATORS
from polyfleet.scheduler.launcher.launch import LauncherReport
from polyfleet.v1 import fleet_pb2 as pb

_SHARED = ("cpu",)  # accelerators whose one device the ranks of a worker share


class Room:
    """Free places for workers, per node and accelerator: one for each device, so that a group takes neighbours."""

    def __init__(
        self,
        nodes: Sequence[Node],
        launchers: Iterable[LauncherReport],
        others: Iterable[pb.WorkerInfo],
        attach: Collection[str],
    ) -> None:
        self._nodes = nodes
        self._attach = attach
        self._used = defaultdict[tuple[str, str], list[int]](list)  # places by node and accelerator
        for report in launchers:
            spec = report.spec
            count = self._count(spec.accelerator, spec.load_request.options)
            self._used[spec.node_id, spec.accelerator] += range(spec.place, spec.place + count)
        for info in others:  # workers without launcher
            for node in nodes:
                if info.host in node.hosts:
                    end = info.device_index + max(1, info.num_devices)
                    self._used[node.node_id, info.accelerator] += range(info.device_index, end)

    @property
    def third_parties(self) -> list[str]:
        """Accelerators that nodes have and this version does not know, by name."""
        return sorted({accelerator for node in self._nodes for accelerator in node.capacity} - set(ACCELERATORS))

    def take(self, accelerators: Sequence[str], options: pb.WorkerOptions) -> tuple[str, Node, int] | None:
        """Use places of the first of these accelerators that has some, on the node with the most of it; the first."""
        for accelerator in accelerators:
            count = self._count(accelerator, options)
            for node in sorted(self._nodes, key=lambda n: (self._free(n, accelerator), n.node_id), reverse=True):
                place = self._neighbours(node, accelerator, count)
                if place is not None:
                    self._used[node.node_id, accelerator] += range(place, place + count)
                    return accelerator, node, place
        return None

    def problem(self, accelerators: Sequence[str], options: pb.WorkerOptions) -> str:
        """Why there is no place."""
        here = [each for each in accelerators if any(node.capacity.get(each) for node in self._nodes)]
        if not here:
            return f"No node of the cluster has {' or '.join(accelerators)}."
        count = max(self._count(each, options) for each in here)
        if count > 1:
            return f"No node of the cluster has {count} {' or '.join(here)} devices side by side that are free."
        return f"All places for {' and '.join(here)} workers are taken."

    def _count(self, accelerator: str, options: pb.WorkerOptions) -> int:
        """How many a worker takes; the container that it is attached to has the devices of its whole group."""
        alone = accelerator in _SHARED or accelerator in self._attach
        return 1 if alone else max(1, options.tensor_parallel)

    def _free(self, node: Node, accelerator: str) -> int:
        return node.capacity.get(accelerator, 0) - len(self._used[node.node_id, accelerator])

    def _neighbours(self, node: Node, accelerator: str, count: int) -> int | None:
        """The first of so many free places in a row."""
        used = set(self._used[node.node_id, accelerator])
        if self._free(node, accelerator) < count:
            return None
        last = len(used) if count == 1 else node.capacity.get(accelerator, 0) - count
        return next((first for first in range(last + 1) if used.isdisjoint(range(first, first + count))), None)

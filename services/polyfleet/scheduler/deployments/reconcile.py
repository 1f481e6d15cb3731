"""From the wish to the next actions: desired deployments, known launchers and workers in, a Plan out. Pure.

Called again and again with fresh facts; each Plan moves the fleet one step towards the wish. It starts replacements
before it stops what they replace, unless there is no room for both. A worker that was started with its own model
belongs to whoever did that: it fulfils no deployment's wish, and no plan touches it.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from polyfleet.scheduler.cluster.cluster import Node
from polyfleet.scheduler.config import ACCELERATORS
from polyfleet.scheduler.fleet.record import Record
from polyfleet.scheduler.launcher.launch import LauncherReport, LaunchSpec, Phase, generation_of
from polyfleet.v1 import fleet_pb2 as pb

_LEAVING = (pb.WORKER_STATE_DRAINING, pb.WORKER_STATE_LOST)
_SHARED = ("cpu",)  # accelerators whose one device the ranks of a worker share
_COUNTED = (pb.WORKER_STATE_READY, pb.WORKER_STATE_LOADING)


@dataclass(frozen=True, slots=True)
class Launch:
    """Start a launcher for a new worker of this deployment."""

    deployment: pb.ModelDeployment
    accelerator: str
    node: Node
    place: int


@dataclass(frozen=True, slots=True)
class Relaunch:
    """Start the launcher of a running worker again: Ray, started anew, knows it no more. It finds the worker."""

    spec: LaunchSpec


@dataclass(frozen=True, slots=True)
class Retire:
    """Let this launcher's worker finish and stop, then end the launcher."""

    launcher_id: str


@dataclass(frozen=True, slots=True)
class Forget:
    """End this launcher and touch no worker: its worker has left already, or its node is gone."""

    launcher_id: str


@dataclass(frozen=True, slots=True)
class DrainWorker:
    """Let this worker, which has no launcher, finish and stop."""

    worker_id: str


Action = Launch | Relaunch | Retire | Forget | DrainWorker


@dataclass(slots=True)
class Plan:
    """What to do now, and of each deployment that can't have all its workers, why."""

    actions: list[Action] = field(default_factory=list)
    problems: dict[str, str] = field(default_factory=dict)


class _Room:
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


def reconcile(
    deployments: Iterable[pb.ModelDeployment],
    launchers: Sequence[LauncherReport],
    records: Sequence[Record],
    nodes: Sequence[Node],
    removed: Collection[str] = (),
    attach: Collection[str] = (),
    known: Mapping[str, LaunchSpec] = MappingProxyType({}),
) -> Plan:
    """The next actions.

    `launchers` are all that exist, those already told to stop included (`stopping`). Workers of a deployment that is
    neither in `deployments` nor in `removed` are left alone: this scheduler may have lost its state, they serve.
    `attach` are the accelerators whose workers stand on their nodes already: one that has its own model is no place.
    `known` is what the workers' launchers were told, those of a Ray of before included.
    """
    plan = Plan()
    alive = {node.node_id for node in nodes}
    states: dict[str, int] = {record.info.worker_id: record.shown.state for record in records}
    wishes = sorted(deployments, key=lambda wish: (wish.created_unix_seconds, wish.name))
    names = {wish.name for wish in wishes}
    present = []
    for report in launchers:
        if report.phase is Phase.LEFT or report.spec.node_id not in alive:
            plan.actions.append(Forget(report.spec.worker_id))
        elif not report.stopping and report.spec.deployment not in names:
            plan.actions.append(Retire(report.spec.worker_id))
        elif not report.stopping:
            present.append(report)
    orphans = _orphans(launchers, records)
    plan.actions.extend(DrainWorker(info.worker_id) for info in orphans if info.deployment in removed)
    plan.actions.extend(_relaunches([o for o in orphans if o.deployment in names], nodes, known))
    owned = [r.info for r in records if r.info.own_model and r.info.accelerator in attach]
    room = _Room(nodes, launchers, orphans + owned, attach)
    for wish in wishes:
        mine = [report for report in launchers if report.spec.deployment == wish.name]
        staying = [r for r in mine if r in present and states.get(r.watched_id) != pb.WORKER_STATE_DRAINING]
        alone = [o.worker_id for o in orphans if o.deployment == wish.name and states[o.worker_id] in _COUNTED]
        _reconcile_one(_Have(wish, staying, len(mine) > len(staying), alone, states), room, plan)
    return plan


@dataclass(frozen=True, slots=True)
class _Have:
    """What one deployment has: launchers that stay, whether others are on their way out, workers without launcher."""

    wish: pb.ModelDeployment
    staying: Sequence[LauncherReport]
    some_leave: bool
    orphans: Sequence[str]
    states: Mapping[str, int]

    def is_ready(self, report: LauncherReport) -> bool:
        """Whether the launcher's worker serves."""
        return self._serves(report.watched_id)

    def _serves(self, worker_id: str) -> bool:
        return self.states.get(worker_id) == pb.WORKER_STATE_READY

    def num_ready(self, reports: Sequence[LauncherReport]) -> int:
        """How many of these workers serve, with those that have no launcher."""
        return sum(map(self.is_ready, reports)) + sum(map(self._serves, self.orphans))

    def least_useful(self, reports: Sequence[LauncherReport]) -> list[LauncherReport]:
        """Those that are not ready first."""
        return sorted(reports, key=lambda report: (self.is_ready(report), report.spec.worker_id))

    def endings(self, reports: Sequence[LauncherReport]) -> list[Action]:
        """How each of these workers and of those without launcher would end: first those that are not ready."""
        ways: list[tuple[bool, bool, str, Action]] = [
            (self._serves(worker_id), False, worker_id, DrainWorker(worker_id)) for worker_id in self.orphans
        ]
        ways += [(self.is_ready(r), True, r.spec.worker_id, Retire(r.spec.worker_id)) for r in reports]
        return [action for *_, action in sorted(ways, key=lambda way: way[:3])]


def _orphans(launchers: Iterable[LauncherReport], records: Iterable[Record]) -> list[pb.WorkerInfo]:
    """Workers that serve a deployment, or load for it, and that no launcher looks after: Ray lost their launchers.

    A worker without a model serves none, whatever it served before: an attached one after its deployment has gone.
    One that is not ready and does not load is nobody's replacement; an unhealthy one still holds its place.
    """
    watched = {report.watched_id for report in launchers}
    return [
        record.info
        for record in records
        if record.info.deployment
        and not record.info.own_model
        and record.info.worker_id not in watched
        and record.shown.state not in (*_LEAVING, pb.WORKER_STATE_STARTING, pb.WORKER_STATE_UNSPECIFIED)
        and (record.info.HasField("model") or record.shown.state == pb.WORKER_STATE_LOADING)
    ]


def _relaunches(
    orphans: Iterable[pb.WorkerInfo], nodes: Sequence[Node], known: Mapping[str, LaunchSpec]
) -> Iterator[Relaunch]:
    """Launchers for the spawned ones whose nodes are there."""
    for info in orphans:
        spec, node = known.get(info.worker_id), next((n for n in nodes if info.host in n.hosts), None)
        if spec and node and spec.launch.mode == "spawn":
            yield Relaunch(replace(spec, node_id=node.node_id))


def _reconcile_one(have: _Have, room: _Room, plan: Plan) -> None:
    """Plan for one deployment."""
    wish, orphans = have.wish, have.orphans
    accelerators = tuple(wish.accelerators) or (*ACCELERATORS, *room.third_parties)
    generation = generation_of(wish)
    current = [r for r in have.staying if r.spec.generation == generation and r.spec.accelerator in accelerators]
    outdated = [r for r in have.staying if r not in current]
    missing = wish.workers - len(current) - len(orphans)
    for _ in range(missing):
        place = room.take(accelerators, wish.options)
        if place is None:
            plan.problems[wish.name] = room.problem(accelerators, wish.options)
            break
        plan.actions.append(Launch(wish, *place))
    ready = have.num_ready(current)
    spare = have.least_useful(outdated)[: max(0, len(outdated) - max(0, wish.workers - ready))]
    all_ready = ready == len(current) + len(orphans)
    if not spare and wish.name in plan.problems and all_ready and not have.some_leave:
        # No room for both: one old worker has to make way for the next new one, where its place is of use.
        spare = have.least_useful([r for r in outdated if r.spec.accelerator in accelerators])[:1]
    plan.actions.extend(Retire(report.spec.worker_id) for report in spare)
    plan.actions.extend(have.endings(current)[: max(0, -missing)])
    if have.some_leave:
        plan.problems.pop(wish.name, None)  # their places come free in a moment
    waiting = [r.reason for r in current if r.phase is Phase.STARTING and r.reason]
    if waiting:
        plan.problems.setdefault(wish.name, waiting[0])

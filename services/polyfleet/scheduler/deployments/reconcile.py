"""From the wish to the next actions: desired deployments, known launchers and workers in, a Plan out. Pure.

Called again and again with fresh facts; each Plan moves the fleet one step towards the wish. It starts replacements
before it stops what they replace, unless there is no room for both. A worker that was started with its own model
belongs to whoever did that: it fulfils no deployment's wish, and no plan touches it.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from polyfleet.scheduler.cluster.cluster import Node
from polyfleet.scheduler.config import ACCELERATORS
from polyfleet.scheduler.deployments.room import Room
from polyfleet.scheduler.fleet.record import Record
from polyfleet.scheduler.launcher.launch import LauncherReport, LaunchSpec, Phase, generation_of
from polyfleet.scheduler.revisions import at_revision, shares
from polyfleet.v1 import fleet_pb2 as pb

_LEAVING = (pb.WORKER_STATE_DRAINING, pb.WORKER_STATE_LOST)
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
    room = Room(nodes, launchers, orphans + owned, attach)
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

    def num_ready(self, reports: Sequence[LauncherReport], orphans: Sequence[str]) -> int:
        """How many of these workers serve."""
        return sum(map(self.is_ready, reports)) + sum(map(self._serves, orphans))

    def endings(self, reports: Sequence[LauncherReport], orphans: Sequence[str] = ()) -> "list[_Ending]":
        """How each of these workers would end: first those that are not ready, then those without launcher."""
        ways = [_Ending(self._serves(worker_id), False, worker_id, DrainWorker(worker_id)) for worker_id in orphans]
        ways += [_Ending(self.is_ready(r), True, r.spec.worker_id, Retire(r.spec.worker_id)) for r in reports]
        return sorted(ways)


@dataclass(frozen=True, slots=True, order=True)
class _Ending:
    """A worker that may go; the least useful one sorts first."""

    serves: bool
    launched: bool
    worker_id: str
    action: Action = field(compare=False)


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


@dataclass(frozen=True, slots=True)
class _Group:
    """What of a deployment's workers one of its revisions has, and how many it is to have."""

    wish: pb.ModelDeployment  # as that revision describes it
    wanted: int
    members: Sequence[LauncherReport]
    orphans: Sequence[str]

    @property
    def surplus(self) -> int:
        """Workers beyond those wanted; below 0: missing ones."""
        return len(self.members) + len(self.orphans) - self.wanted


def _groups(have: _Have, accelerators: Collection[str]) -> list[_Group]:
    """The revisions that have workers; those without launcher count for the one that is wished for."""
    groups = []
    for number, wanted in shares(have.wish).items():
        wish = at_revision(have.wish, number)
        generation = generation_of(wish)
        members = [r for r in have.staying if r.spec.generation == generation and r.spec.accelerator in accelerators]
        orphans = have.orphans if number == have.wish.revision else ()
        groups.append(_Group(wish, wanted, members, orphans))
    return groups


def _reconcile_one(have: _Have, room: Room, plan: Plan) -> None:
    """Plan for one deployment: as many workers as wished for stay ready, and few are there beyond them meanwhile."""
    wish, accelerators = have.wish, tuple(have.wish.accelerators) or (*ACCELERATORS, *room.third_parties)
    groups = _groups(have, accelerators)
    members = [report for group in groups for report in group.members]
    total = sum(group.wanted for group in groups)
    outdated = [report for report in have.staying if report not in members]
    surplus = [end for group in groups for end in have.endings(group.members, group.orphans)[: max(0, group.surplus)]]
    surge = total + max(1, wish.rollout.max_surge) - len(have.staying) - len(have.orphans)
    _launch_missing(groups, max(0, surge) if outdated or surplus else total, accelerators, room, plan)

    ready = sum(min(group.wanted, have.num_ready(group.members, group.orphans)) for group in groups)
    leaving = sorted([*have.endings(outdated), *(end for end in surplus if end.serves)])
    spare = leaving[: max(0, len(leaving) - max(0, total - ready))]
    waits = any(not have.is_ready(report) for report in members)
    if not spare and wish.name in plan.problems and not waits and not have.some_leave:
        # No room for both: one old worker has to make way for the next new one, where its place is of use.
        of_use = {r.spec.worker_id for r in have.staying if r.spec.accelerator in accelerators}
        spare = [end for end in leaving if end.worker_id in of_use][:1]
    plan.actions.extend(end.action for end in (*spare, *(end for end in surplus if not end.serves)))
    _explain_waiting(have, members, plan)


def _explain_waiting(have: _Have, members: Iterable[LauncherReport], plan: Plan) -> None:
    """Say why workers are missing: not for want of room where some leave, and else what one that starts waits for."""
    if have.some_leave:
        plan.problems.pop(have.wish.name, None)  # their places come free in a moment
    waiting = [report.reason for report in members if report.phase is Phase.STARTING and report.reason]
    if waiting:
        plan.problems.setdefault(have.wish.name, waiting[0])


def _launch_missing(groups: Iterable[_Group], most: int, accelerators: Sequence[str], room: Room, plan: Plan) -> None:
    """Start what groups lack, `most` workers at most."""
    for group in groups:
        for _ in range(min(most, -group.surplus)):
            place = room.take(accelerators, group.wish.options)
            if place is None:
                plan.problems[group.wish.name] = room.problem(accelerators, group.wish.options)
                return
            most -= 1
            plan.actions.append(Launch(group.wish, *place))

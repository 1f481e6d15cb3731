"""Who is in the fleet and how they are: registrations, reports, silence, launchers' news. Pure; times are given.

A worker is LOST after 3 s without a report (an agent's, after 15 s) and forgotten a minute later, unless a launcher
still looks after it. Its own reports say how it is, except where only its launcher can know: not started yet, crashed,
could not load. What it says of its model counts once it is READY with it. One open stream speaks for an id, until it
falls silent or its process opens another.
"""

from collections.abc import Iterable

from polyfleet.placement.proto import ReportCheck, same_model
from polyfleet.process.revision import Revision
from polyfleet.scheduler.fleet.crash_loops import CrashLoops
from polyfleet.scheduler.fleet.devices import WorkerDevices
from polyfleet.scheduler.fleet.record import Record, starting
from polyfleet.scheduler.launcher.launch import LauncherReport, Phase
from polyfleet.scheduler.revisions import generations
from polyfleet.v1 import fleet_pb2 as pb
from polyfleet.v1.operations_pb2 import DeviceReport

FORGOTTEN_AFTER_SECONDS = 60.0
DEAF_AFTER_SECONDS = 1.0
MAX_WORKERS = 4096
_RATES = (
    "prefill_tokens_per_second",
    "decode_tokens_per_second",
    "decode_step_seconds",
    "decode_step_seconds_per_sequence",
    "decode_step_seconds_per_token",
    "fetch_tokens_per_second",
    "import_tokens_per_second",
)
POOLS_REVISION = 1  # of workers of pools that share out their model's requests: each pool is a revision of it


class TakenError(ValueError):
    """The id belongs to another process. The message is one sentence."""


class FullError(RuntimeError):
    """The fleet has as many workers as it can hold. The message is one sentence."""


class Registry:
    """All workers and deployments of one life (`epoch`) of the scheduler; `revision` counts the visible changes."""

    def __init__(self, epoch: str, pools: Iterable[pb.ModelDeployment] = (), generation: int = 0) -> None:
        self.epoch, self.generation = epoch, generation
        self.revision = Revision()
        self._records: dict[str, Record] = {}
        self._deployments: tuple[pb.ModelDeployment, ...] = ()
        self._generations: dict[tuple[str, str], int] = {}  # revisions, by deployment and what their workers load
        self._pools = tuple(pools)
        self._scaling_problems: dict[str, str] = {}
        self._crash_loops = CrashLoops()
        self._swept: float | None = None
        self._snapshot = pb.FleetSnapshot(scheduler_epoch=epoch, pools=self._pools, generation=generation)

    @property
    def records(self) -> tuple[Record, ...]:
        """All workers, in order of their ids."""
        return tuple(self._records[worker_id] for worker_id in sorted(self._records))

    def record(self, worker_id: str) -> Record | None:
        """The worker of that id."""
        return self._records.get(worker_id)

    def register(self, info: pb.WorkerInfo, stream: int, now: float) -> None:
        """A worker announced itself on `stream`; an earlier stream of the same id is not listened to any more.

        Raises TakenError when the id is another process's, FullError when there is no room for one more worker.
        """
        record = self._records.get(info.worker_id)
        if record is None:
            if len(self._records) >= MAX_WORKERS:
                raise FullError(f"The fleet has {MAX_WORKERS} workers already: no more can register.")
            record = self._records[info.worker_id] = Record(info)
        elif reason := record.taken(info, stream, now):
            raise TakenError(f"The worker id {info.worker_id!r} is taken: {reason}.")
        if record.stream != stream and record.info.pid != info.pid:
            self._note_end(record, now)
            record.status, record.proven, record.was_ready = starting(), False, False
            record.check, record.quarantine, record.reported = ReportCheck(), "", False
        self._crash_loops.came_back(info)
        record.proven = record.proven and same_model(record.info.model, info.model)
        before = (record.info, record.stream, record.lost)
        record.info, record.stream, record.heard, record.lost = info, stream, now, False
        record.is_open = True
        if before != (info, stream, False):
            self._changed()

    def report(self, worker_id: str, status: pb.WorkerStatus, stream: int, now: float) -> None:
        """A worker's status came in on `stream`; ignored unless that stream speaks for it."""
        record = self._records.get(worker_id)
        if record is None or record.stream != stream:
            return
        before, told = record.shown, (record.quarantine, record.proven)
        if record.lost:
            self._crash_loops.came_back(record.info)
        record.status, record.heard, record.lost, record.reported = status, now, False, True
        record.proven = record.proven or status.state == pb.WORKER_STATE_READY
        record.was_ready = record.was_ready or record.proven
        record.quarantine = record.check.problem(record.info, status)
        if told != (record.quarantine, record.proven) or _visible(before) != _visible(record.shown):
            self._changed()

    def report_devices(self, worker_id: str, report: DeviceReport, stream: int, now: float) -> None:
        """A worker's devices as it read them; no change that gateways should hear of."""
        record = self._records.get(worker_id)
        if record is not None and record.stream == stream:
            record.devices = WorkerDevices(record.info, report, now)

    @property
    def devices(self) -> list[WorkerDevices]:
        """What each worker that told of its devices said last."""
        return [record.devices for record in self._records.values() if record.devices]

    def closed(self, worker_id: str, stream: int) -> None:
        """A stream ended. A worker that was draining has gone (its launcher, if any, will say so); any other has until
        it is LOST to come back.
        """
        record = self._records.get(worker_id)
        if record is not None and record.stream == stream:
            record.is_open = False
        alone = record is not None and record.stream == stream and record.launcher is None
        if record and alone and record.status.state == pb.WORKER_STATE_DRAINING:
            self.forget(worker_id)

    def sweep(self, now: float) -> None:
        """Let time pass: mark silent workers LOST, forget those that stayed away and have no launcher.

        Called several times a second. When the last call is long past, this process could not hear the workers for
        that time (a busy machine, a suspended one), and it is not held against them.
        """
        deaf = now - (now if self._swept is None else self._swept)
        self._swept = now
        if deaf > DEAF_AFTER_SECONDS:
            for record in self._records.values():
                record.heard = min(now, record.heard + deaf)
        for worker_id, record in list(self._records.items()):
            silence = now - record.heard
            if record.stream >= 0 and not record.lost and silence > record.lost_after:
                record.lost = True
                self._note_end(record, now)
                self._changed()
            if record.lost and record.launcher is None and silence > FORGOTTEN_AFTER_SECONDS:
                self.forget(worker_id)
        self._show_crash_loops(now)

    @property
    def pools(self) -> tuple[pb.ModelDeployment, ...]:
        """The pools that snapshots show."""
        return self._pools

    def show_pool(self, name: str, workers: int | None, problem: str) -> None:
        """How many workers a pool is to have now (None: as before), and why that can't be changed."""
        self._scaling_problems[name] = problem
        for pool in self._pools:
            if pool.name == name and workers not in (None, pool.workers):
                changed = pb.ModelDeployment()
                changed.CopyFrom(pool)
                changed.workers = workers or 0
                self.replace_pool(changed)

    def replace_pool(self, changed: pb.ModelDeployment) -> None:
        """Show this in the place of the pool of its name."""
        self._pools = tuple(changed if each.name == changed.name else each for each in self._pools)
        self._changed()

    def _note_end(self, record: Record, now: float) -> None:
        if record.launcher is None and record.status.state != pb.WORKER_STATE_DRAINING:
            self._crash_loops.ended(record.info, record.status.reason, now, ready=record.was_ready)

    def _show_crash_loops(self, now: float) -> None:
        """Tell of each pool that can't keep its workers."""
        loops = self._crash_loops.problems(self._pools, now)
        scaling = (self._scaling_problems.get(pool.name, "") for pool in self._pools)
        problems = [loop or problem for loop, problem in zip(loops, scaling, strict=True)]
        if problems == [pool.problem for pool in self._pools]:
            return
        shown = []
        for pool, problem in zip(self._pools, problems, strict=True):
            changed = pb.ModelDeployment()
            changed.CopyFrom(pool)
            changed.problem = problem
            shown.append(changed)
        self._pools = tuple(shown)
        self._changed()

    def observe(self, reports: Iterable[LauncherReport]) -> None:
        """Take over what all launchers say now.

        A spawned worker that its launcher saw leaving is forgotten (an attached one stays, under an id of its own); one
        that never registered goes with its launcher.
        """
        by_worker = {report.watched_id: report for report in reports}
        for worker_id, report in by_worker.items():
            if report.phase is Phase.LEFT:
                self.forget(report.spec.worker_id)
            elif worker_id not in self._records:
                self._records[worker_id] = Record(_info_of(report), launcher=report)
                self._changed()
        for worker_id, record in list(self._records.items()):
            before = record.shown
            record.launcher = by_worker.get(worker_id)
            self._number(record)
            if record.launcher is None and record.stream < 0:
                self.forget(worker_id)
            elif _visible(before) != _visible(record.shown):
                self._changed()

    def _number(self, record: Record) -> None:
        """Note which of its deployment's revisions a worker is of."""
        spec = record.launcher.spec if record.launcher else None
        number = self._generations.get((spec.deployment, spec.generation), 0) if spec else record.revision
        if number != record.revision:
            record.revision = number
            self._changed()

    def forget(self, worker_id: str) -> None:
        """Drop the worker's record."""
        if self._records.pop(worker_id, None):
            self._changed()

    def set_deployments(self, deployments: Iterable[pb.ModelDeployment]) -> None:
        """Replace the deployments that snapshots show."""
        wanted = tuple(deployments)
        if wanted != self._deployments:
            self._deployments = wanted
            numbers = {each.name: generations(each) for each in wanted}
            self._generations = {(name, key): it for name, found in numbers.items() for key, it in found.items()}
            for record in self._records.values():
                self._number(record)
            self._changed()

    @property
    def deployments(self) -> tuple[pb.ModelDeployment, ...]:
        """The deployments that snapshots show."""
        return self._deployments

    def served_by(self, deployment: str) -> str:
        """The model's name that a deployment's or pool's workers serve; of one that nobody wishes for: its own."""
        wishes = (each for each in (*self._deployments, *self._pools) if each.name == deployment)
        return next((each.model_name for each in wishes if each.model_name), deployment)

    def snapshot(self) -> pb.FleetSnapshot:
        """The fleet now. Callers must not change it: it is built once per revision."""
        if self._snapshot.version != self.revision.number:
            workers = [
                pb.FleetWorker(info=each.announced, status=each.shown, quarantine=each.quarantine * (not each.lost))
                for each in self.records
            ]
            roles = {each.name: each.role for each in (*self._pools, *self._deployments)}
            shared = {each.name for each in self._pools if each.HasField("traffic_percent")}
            for worker, record in zip(workers, self.records, strict=True):
                worker.info.revision = POOLS_REVISION if worker.info.deployment in shared else record.revision
                worker.info.role = roles.get(record.info.deployment, record.info.role)
            self._snapshot = pb.FleetSnapshot(
                scheduler_epoch=self.epoch,
                version=self.revision.number,
                workers=workers,
                deployments=self._deployments,
                pools=self._pools,
                generation=self.generation,
            )
        return self._snapshot

    def _changed(self) -> None:
        self.revision.advance()


def _visible(status: pb.WorkerStatus) -> bytes:
    """What of a status is worth a new snapshot: all but the running totals, and rates to two digits."""
    facts = pb.WorkerStatus()
    facts.CopyFrom(status)
    facts.ClearField("counters")
    facts.ClearField("step")
    for name in _RATES:
        if value := getattr(facts, name):
            setattr(facts, name, float(f"{value:.1e}"))
    return facts.SerializeToString(deterministic=True)


def _info_of(report: LauncherReport) -> pb.WorkerInfo:
    """What is known of a worker that has not registered yet."""
    return pb.WorkerInfo(
        worker_id=report.watched_id,
        deployment=report.spec.deployment,
        accelerator=report.spec.accelerator,
        host=report.host,
        pid=report.pid,
        intended_model=report.spec.load_request.model_name,
    )

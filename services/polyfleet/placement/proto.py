"""From the wire's fleet to placement's: what a gateway or the scheduler knows as frozen dataclasses."""

from collections.abc import Mapping
from dataclasses import replace

from polyfleet.placement.filters import nonsense_in
from polyfleet.placement.fleet import FleetSnapshot, Revision, Role, Worker, WorkerState
from polyfleet.v1 import fleet_pb2 as pb
from polyfleet.wire.features import FIRST_FEATURES, adapter_feature

_STATES: Mapping[int, WorkerState] = {
    pb.WORKER_STATE_STARTING: WorkerState.STARTING,
    pb.WORKER_STATE_LOADING: WorkerState.LOADING,
    pb.WORKER_STATE_READY: WorkerState.READY,
    pb.WORKER_STATE_DRAINING: WorkerState.DRAINING,
    pb.WORKER_STATE_UNHEALTHY: WorkerState.UNHEALTHY,
    pb.WORKER_STATE_LOST: WorkerState.LOST,
}


_ROLES: Mapping[int, Role] = {
    pb.WORKER_ROLE_UNSPECIFIED: Role.BOTH,
    pb.WORKER_ROLE_PREFILL: Role.PREFILL,
    pb.WORKER_ROLE_DECODE: Role.DECODE,
}


def role_from_proto(role: int) -> Role:
    """The role; BOTH for one of a newer version."""
    return _ROLES.get(role, Role.BOTH)


def role_to_proto(role: Role) -> "pb.WorkerRole.ValueType":
    """As it travels."""
    return pb.WorkerRole.ValueType(next(number for number, each in _ROLES.items() if each is role))


def state_from_proto(state: int) -> WorkerState:
    """The state; UNKNOWN where none is told, or one of a newer version, which is no state to send requests to."""
    return _STATES.get(state, WorkerState.UNKNOWN)


def snapshot_from_proto(message: pb.FleetSnapshot) -> FleetSnapshot:
    """The snapshot with all its workers, in the message's order."""
    return FleetSnapshot(
        epoch=message.scheduler_epoch,
        version=message.version,
        workers=tuple(worker_from_proto(worker.info, worker.status) for worker in message.workers),
    )


def went_back(before: pb.WorkerStatus, now: pb.WorkerStatus) -> str:
    """How a worker's time went back from one report to the next, for people; empty where it did not.

    An engine that was replaced begins with its steps, too.
    """
    past, present = before.counters.step_seconds, now.counters.step_seconds
    if now.step < before.step or present >= past:  # which no NaN is
        return ""
    return f"seconds in steps: {present:g}, after {past:g} before"


def same_model(one: pb.ModelInfo, other: pb.ModelInfo) -> bool:
    """Whether a worker serves what it served: adapters come and go while it does."""
    bare = pb.ModelInfo()
    bare.CopyFrom(one)
    bare.ClearField("adapters")
    bare.adapters.extend(other.adapters)
    return bare == other


class ReportCheck:
    """What of one worker's reports can't be true, from one to the next."""

    def __init__(self) -> None:
        self._sound = pb.WorkerStatus()  # the last one whose time did not go back

    def problem(self, info: pb.WorkerInfo, status: pb.WorkerStatus) -> str:
        """Of its last report, as "what: value"; empty where it makes sense. Only a READY worker is looked at."""
        back = went_back(self._sound, status)
        if not back:
            self._sound = status
        ready = status.state == pb.WORKER_STATE_READY
        return (worker_from_proto(info, status).nonsense or back) if ready else ""


def worker_from_proto(info: pb.WorkerInfo, status: pb.WorkerStatus) -> Worker:
    """One worker from its registration and its last report."""
    model = info.model
    worker = Worker(
        worker_id=info.worker_id,
        address=info.address,
        model=model.name,
        accelerator=info.accelerator,
        state=state_from_proto(status.state),
        context_length=model.context_length,
        block_size=model.block_size or 1,
        num_blocks=model.num_blocks,
        free_blocks=status.free_blocks,
        max_sequences=model.max_sequences,
        running_sequences=status.running_sequences,
        waiting_sequences=status.waiting_sequences,
        waiting_prefill_tokens=status.waiting_prefill_tokens,
        prefill_tokens_per_second=status.prefill_tokens_per_second,
        decode_tokens_per_second=status.decode_tokens_per_second,
        fingerprint=model.fingerprint,
        tokenizer_hash=model.tokenizer_hash,
        step_seconds=status.decode_step_seconds,
        step_seconds_per_sequence=status.decode_step_seconds_per_sequence,
        step_seconds_per_token=status.decode_step_seconds_per_token,
        device_name=info.device_name,
        deployment=info.deployment,
        revision=Revision(info.deployment, info.revision) if info.revision else None,
        dtype=model.dtype,
        role=role_from_proto(info.role),
        fetch_tokens_per_second=status.fetch_tokens_per_second,
        import_tokens_per_second=status.import_tokens_per_second,
        features=(frozenset(model.features) or FIRST_FEATURES)
        | {adapter_feature(each.fingerprint) for each in model.adapters if each.fingerprint},
    )
    nonsense = nonsense_in(worker)
    return replace(worker, nonsense=nonsense) if nonsense else worker

"""Whether waiting for a model's worker can help, and why none is ready: read from the scheduler's snapshot. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from polyfleet.gateway.fleet.snapshot import Snapshot
from polyfleet.v1 import fleet_pb2 as pb

_BROKEN = (pb.WORKER_STATE_UNHEALTHY, pb.WORKER_STATE_LOST)
MAX_REASON = 500  # characters of a worker's or deployment's own sentence


@dataclass(frozen=True, slots=True)
class Outlook:
    """Why a model has no ready worker, in one sentence. `hopeless`: a wait of seconds won't change it."""

    reason: str
    hopeless: bool = False


def served_name(wish: pb.ModelDeployment) -> str:
    """The name under which a deployment's or pool's model is served."""
    return wish.model_name or wish.name


def intended_models(snapshot: Snapshot | pb.FleetSnapshot) -> frozenset[str]:
    """Names of the models that workers have, load or could not load."""
    return frozenset(each.info.intended_model for each in snapshot.workers) - {""}


def outlook(model: str, snapshot: Snapshot | pb.FleetSnapshot) -> Outlook:
    """The outlook of a model that somebody wants and that no worker is ready for."""
    deployments = [wish for wish in snapshot.deployments if served_name(wish) == model]
    pools = [pool for pool in snapshot.pools if served_name(pool) == model]
    names = {wish.name for wish in deployments}
    workers = [each for each in snapshot.workers if _is_for(model, names, each.info)]
    crash_loops = [pool.problem for pool in pools if pool.problem]
    if loading := [each.status for each in workers if each.status.state == pb.WORKER_STATE_LOADING]:
        return _of_loading(model, loading, crash_loops)
    problems = _own_problems(deployments, workers) + crash_loops
    if workers:
        return _of_workers(model, workers, problems, bool(crash_loops))
    if problems:
        return Outlook(f"Model {model} has no worker. {_sentences(problems)}", hopeless=True)
    return _of_wishes(model, [*deployments, *pools], deployed=bool(deployments))


def _of_loading(model: str, loading: Sequence[pb.WorkerStatus], crash_loops: Iterable[str]) -> Outlook:
    """While some worker loads the model: hopeless where all of them stand still, and say why."""
    share = max(each.load_progress for each in loading)
    reasons = _sentences([*(each.reason for each in loading), *crash_loops])
    standstill = all(each.reason for each in loading)
    return Outlook(f"Model {model} is being loaded ({share:.0%}). {reasons}".strip(), standstill)


def _own_problems(deployments: Iterable[pb.ModelDeployment], workers: Iterable[pb.FleetWorker]) -> list[str]:
    """What deployments say that does not only repeat the sentence of one of the workers."""
    said = [each.status.reason.rstrip(".") for each in workers if each.status.reason]
    return [wish.problem for wish in deployments if wish.problem and not any(each in wish.problem for each in said)]


def _of_workers(model: str, workers: Sequence[pb.FleetWorker], problems: Iterable[str], crash_loops: bool) -> Outlook:
    """While workers of the model are there, of which none is ready and none loads it."""
    reasons = _sentences([*(each.status.reason for each in workers), *problems])
    states = {each.status.state for each in workers}
    if pb.WORKER_STATE_STARTING in states:
        return Outlook(f"Model {model} is being loaded: a worker starts. {reasons}".strip())
    if states - set(_BROKEN):
        return Outlook(f"The workers of model {model} are changing. {reasons}".strip())
    # One that had its model, or was lost, may come back; one that could not load it fails again.
    failed = all(each.status.state == pb.WORKER_STATE_UNHEALTHY and not each.info.HasField("model") for each in workers)
    return Outlook(f"No worker of model {model} is well. {reasons}".strip(), failed or crash_loops)


def _of_wishes(model: str, wishes: Sequence[pb.ModelDeployment], *, deployed: bool) -> Outlook:
    """Without any worker, and without a word why: by how many are wanted."""
    wanted = sum(wish.workers for wish in wishes)
    if not wishes or wanted:
        return Outlook(f"Model {model} has none of its workers now: {wanted} wanted, 0 there.")
    if any(wish.HasField("autoscaling") for wish in wishes):
        return Outlook(f"Model {model} has no worker while nobody asks for it: one is about to start.")
    return Outlook(f"Model {model} has no worker: none is wanted now.", hopeless=deployed)


def _is_for(model: str, deployments: Iterable[str], info: pb.WorkerInfo) -> bool:
    return model in (info.model.name, info.intended_model) or info.deployment in deployments


def _sentences(reasons: Iterable[str]) -> str:
    """The different ones of these sentences, each with its full stop, capital first."""
    different = dict.fromkeys(reason.strip() for reason in reasons if reason.strip())
    return " ".join(f"{each[:1].upper()}{each[1:MAX_REASON].rstrip('.')}." for each in different)

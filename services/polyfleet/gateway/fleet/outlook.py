"""Whether waiting for a model's worker can help, and why none is ready: read from the scheduler's snapshot. Pure."""

from collections.abc import Iterable
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
    wishes = [wish for wish in (*snapshot.deployments, *snapshot.pools) if served_name(wish) == model]
    deployments = {wish.name for wish in snapshot.deployments if served_name(wish) == model}
    workers = [each for each in snapshot.workers if _is_for(model, deployments, each.info)]
    looping = [pool.problem for pool in snapshot.pools if served_name(pool) == model]
    if loading := [each.status for each in workers if each.status.state == pb.WORKER_STATE_LOADING]:
        share, said = max(each.load_progress for each in loading), _sentences([*(s.reason for s in loading), *looping])
        standstill = all(each.reason for each in loading)
        return Outlook(f"Model {model} is being loaded ({share:.0%}). {said}".strip(), standstill)
    own = [each.status.reason.rstrip(".") for each in workers if each.status.reason]  # which deployments repeat
    problems = [
        wish.problem
        for wish in wishes
        if wish.problem and not (wish.name in deployments and any(each in wish.problem for each in own))
    ]
    broken = [each for each in workers if each.status.state == pb.WORKER_STATE_UNHEALTHY]
    told = _sentences([*(each.status.reason for each in workers), *problems])
    states = {each.status.state for each in workers}
    if pb.WORKER_STATE_STARTING in states:
        return Outlook(f"Model {model} is being loaded: a worker starts. {told}".strip())
    if states - set(_BROKEN):
        return Outlook(f"The workers of model {model} are changing. {told}".strip())
    if workers:  # one that had its model, or was lost, may come back; one that could not load it fails again
        failed = all(each in broken and not each.info.HasField("model") for each in workers)
        return Outlook(f"No worker of model {model} is well. {told}".strip(), failed or any(looping))
    if problems:
        return Outlook(f"Model {model} has no worker. {told}", hopeless=True)
    wanted = sum(wish.workers for wish in wishes)
    if wishes and not wanted:
        if any(wish.HasField("autoscaling") for wish in wishes):
            return Outlook(f"Model {model} has no worker while nobody asks for it: one is about to start.")
        return Outlook(f"Model {model} has no worker: none is wanted now.", hopeless=bool(deployments))
    return Outlook(f"Model {model} has none of its workers now: {wanted} wanted, 0 there.")


def _is_for(model: str, deployments: Iterable[str], info: pb.WorkerInfo) -> bool:
    return model in (info.model.name, info.intended_model) or info.deployment in deployments


def _sentences(reasons: Iterable[str]) -> str:
    """The different ones of these sentences, each with its full stop, capital first."""
    different = dict.fromkeys(reason.strip() for reason in reasons if reason.strip())
    return " ".join(f"{each[:1].upper()}{each[1:MAX_REASON].rstrip('.')}." for each in different)

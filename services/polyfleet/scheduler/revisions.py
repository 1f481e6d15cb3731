"""Revisions of a deployment: which changes make one, how requests and workers are shared out, going back. Pure."""

import grpc

from polyfleet.scheduler.launcher.launch import generation_of
from polyfleet.v1 import fleet_pb2 as pb
from polyfleet.wire.limits import FieldError

MOST_KEPT = 10
ALL = 100  # percent


class RolloutError(Exception):
    """A change that can't be made. The message is one sentence."""

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.code = code


def within(aims: pb.Autoscaling, workers: int) -> int:
    """The number of workers of an autoscaled deployment or pool, or the nearest that its aims allow."""
    return min(max(workers, aims.min_workers), max(1, aims.max_workers))


def copy_of(wish: pb.ModelDeployment) -> pb.ModelDeployment:
    """One that may be changed."""
    copy = pb.ModelDeployment()
    copy.CopyFrom(wish)
    return copy


def numbered(wish: pb.ModelDeployment) -> pb.ModelDeployment:
    """The wish itself, which older versions stored without a revision, with its first one."""
    if not wish.revision:
        wish.revision = wish.stable_revision = 1
        wish.revisions.append(_revision(wish, 1, wish.created_unix_seconds))
    return wish


def deployed(before: pb.ModelDeployment | None, wanted: pb.ModelDeployment, now: int) -> pb.ModelDeployment:
    """What is to be stored when `wanted` is deployed over `before`. Raises RolloutError, FieldError.

    A model, name and options that a revision in `before` has are that revision; others are a new one. Traffic names
    the one that the call describes as revision 0.
    """
    wish = copy_of(wanted)
    del wish.revisions[:]
    wish.problem, wish.stable_revision = "", before.stable_revision if before else 0
    wish.created_unix_seconds = before.created_unix_seconds if before else now
    if before and not wish.adapters:
        wish.adapters.extend(before.adapters)
    if wish.HasField("autoscaling"):
        wish.workers = within(wish.autoscaling, before.workers if before else wish.workers)
    if before and wanted.revision not in (0, before.revision):
        text = (
            f"Deployment {wish.name} has changed meanwhile: it is at revision {before.revision}, not {wish.revision}."
        )
        raise RolloutError(grpc.StatusCode.ABORTED, text)
    known = list(before.revisions) if before else []
    same = next((each for each in known if _same(each, wish)), None)
    number = same.number if same else max((each.number for each in known), default=0) + 1
    if same is None:
        known.insert(0, _revision(wish, number, now))
    wish.revisions.extend(known)
    _take_traffic(wish, number, before.revision if before else 0)
    for each in wish.revisions:
        if each.number == wish.revision:
            each.problem = ""  # it is wished for again
    _forget_old(wish)
    return wish


def _take_traffic(wish: pb.ModelDeployment, number: int, before: int) -> None:
    """Settle which revision is wished for, and the shares; `number` is the one that the call describes."""
    for target in wish.traffic:
        target.revision = target.revision or number
    if number != before and all(each.revision != number for each in wish.traffic):
        del wish.traffic[:]  # shares between others: another revision ends them
    check_traffic(wish)
    shares_left = [each.revision for each in wish.traffic if each.percent]
    wish.revision = max(shares_left, default=number)
    if wish.revision != number:
        _describe(wish, wish.revision)
    if len(shares_left) < 2:
        del wish.traffic[:]


def check_traffic(wish: pb.ModelDeployment) -> None:
    """Raise FieldError where the shares don't add up or name what there is not."""
    if not wish.traffic:
        return
    numbers, known = [each.revision for each in wish.traffic], {each.number for each in wish.revisions}
    if unknown := sorted(set(numbers) - known):
        listed = ", ".join(map(str, sorted(known)))
        raise FieldError("deployment.traffic", f"must name revisions that there are ({listed}), not {unknown[0]}")
    if len(set(numbers)) < len(numbers):
        raise FieldError("deployment.traffic", "must name each revision once")
    if (total := sum(each.percent for each in wish.traffic)) != ALL:
        raise FieldError("deployment.traffic", f"must add up to {ALL} percent, not {total}")
    names = {each.model_name or wish.name for each in wish.revisions if each.number in numbers}
    if len(names) > 1:
        raise FieldError("deployment.traffic", f"must be between revisions of one name, not {', '.join(sorted(names))}")


def undone(wish: pb.ModelDeployment, to: int = 0) -> pb.ModelDeployment:
    """The wish at an earlier revision: `to`, or the last one before the present one. Raises RolloutError."""
    numbers = [each.number for each in wish.revisions]
    if to and to not in numbers:
        listed = ", ".join(map(str, sorted(numbers)))
        text = f"Deployment {wish.name} has no revision {to}; it has: {listed}."
        raise RolloutError(grpc.StatusCode.NOT_FOUND, text)
    earlier = [each.number for each in wish.revisions if each.number < wish.revision and not each.problem]
    if not to and not earlier:
        text = f"Deployment {wish.name} has no revision before {wish.revision} to go back to."
        raise RolloutError(grpc.StatusCode.FAILED_PRECONDITION, text)
    if to == wish.revision and not wish.traffic:
        text = f"Deployment {wish.name} is at revision {to} already."
        raise RolloutError(grpc.StatusCode.FAILED_PRECONDITION, text)
    back = at_revision(wish, to or max(earlier))
    del back.traffic[:]
    return back


def taken_back(wish: pb.ModelDeployment, to: int, problem: str) -> pb.ModelDeployment:
    """The wish at revision `to`, with the reason at the one that failed."""
    back = at_revision(wish, to)
    del back.traffic[:]
    for each in back.revisions:
        if each.number == wish.revision:
            each.problem = problem
    return back


def at_revision(wish: pb.ModelDeployment, number: int) -> pb.ModelDeployment:
    """The wish as one of its revisions describes it."""
    if number == wish.revision:
        return wish
    copy = copy_of(wish)
    _describe(copy, number)
    return copy


def _describe(wish: pb.ModelDeployment, number: int) -> None:
    revision = next(each for each in wish.revisions if each.number == number)
    wish.revision = number
    wish.model_name, wish.source = revision.model_name, revision.source
    wish.options.CopyFrom(revision.options)


def shares(wish: pb.ModelDeployment) -> dict[int, int]:
    """Workers that each revision is to have, the newest first: its share of them, and one where it has any requests."""
    if not wish.traffic:
        return {wish.revision: wish.workers}
    least = min(1, wish.workers)
    wanted = {each.revision: each.percent for each in wish.traffic if each.percent}
    return {each: max(least, round(wish.workers * wanted[each] / ALL)) for each in sorted(wanted, reverse=True)}


def generations(wish: pb.ModelDeployment) -> dict[str, int]:
    """The number of each revision by its workers' generation; of equal ones the present one's."""
    found = {generation_of(at_revision(wish, each.number)): each.number for each in wish.revisions}
    return found | {generation_of(wish): wish.revision}


def newest_problem(wish: pb.ModelDeployment) -> str:
    """Why the newest revision was taken back, as a sentence; empty where it was not."""
    newest = next(iter(wish.revisions), None)
    if newest is None or newest.number <= wish.revision or not newest.problem:
        return ""
    return f"Revision {newest.number} was taken back, and revision {wish.revision} serves: {newest.problem}"


def _forget_old(wish: pb.ModelDeployment) -> None:
    needed = {wish.revision, wish.stable_revision, *(each.revision for each in wish.traffic)}
    kept = [each for at, each in enumerate(wish.revisions) if at < MOST_KEPT or each.number in needed]
    del wish.revisions[:]
    wish.revisions.extend(sorted(kept, key=lambda each: -each.number))


def _revision(wish: pb.ModelDeployment, number: int, now: int) -> pb.Revision:
    return pb.Revision(
        number=number,
        created_unix_seconds=now,
        model_name=wish.model_name,
        source=wish.source,
        options=wish.options,
    )


def _same(revision: pb.Revision, wish: pb.ModelDeployment) -> bool:
    served = (revision.model_name or wish.name) == (wish.model_name or wish.name)
    return served and revision.source == wish.source and revision.options == wish.options

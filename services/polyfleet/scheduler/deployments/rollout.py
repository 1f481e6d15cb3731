"""How rollouts go on and back: a revision that comes up is stable; one that does not, or fails requests, is taken back.

Pure; times are given. What is remembered here alone (since when a revision has come no further) begins anew with the
scheduler.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from polyfleet.scheduler.fleet.demand import Outcomes
from polyfleet.scheduler.fleet.record import Record
from polyfleet.scheduler.launcher.launch import LauncherReport, generation_of
from polyfleet.scheduler.revisions import copy_of, shares, taken_back
from polyfleet.v1 import fleet_pb2 as pb

PROGRESS_SECONDS = 600.0
MAX_ERROR_RATIO = 0.05
MIN_ERRORS = 5  # fewer may be chance
ERROR_SECONDS = 300.0  # the last so many count, and so long a revision that has come up is watched
UNWELL_SECONDS = 20.0  # without any worker that is ready, and with all unhealthy
MOST_STARTS = 2  # of a worker whose revision has none that is ready
OutcomesOf = Callable[[str, int], Outcomes]


@dataclass(frozen=True, slots=True)
class RevisionState:
    """How a revision's workers are: how many, ready, unhealthy; the most that one was started again, and a reason."""

    workers: int = 0
    ready: int = 0
    unhealthy: int = 0
    restarts: int = 0
    reason: str = ""


def state_of(wish: pb.ModelDeployment, reports: Iterable[LauncherReport], records: Iterable[Record]) -> RevisionState:
    """How those workers are that serve the wish as its present revision describes it."""
    known = {record.info.worker_id: record.shown for record in records}
    generation = generation_of(wish)
    mine = [each for each in reports if each.spec.generation == generation and not each.stopping]
    shown = [known[each.watched_id] for each in mine if each.watched_id in known]
    reasons = [each.reason for each in shown if each.reason and each.state != pb.WORKER_STATE_READY]
    return RevisionState(
        len(mine),
        sum(each.state == pb.WORKER_STATE_READY for each in shown),
        sum(each.state == pb.WORKER_STATE_UNHEALTHY for each in shown),
        max((each.restarts for each in mine), default=0),
        next(iter(reasons), ""),
    )


def fails_more(new: Outcomes, others: Outcomes, most: float) -> bool:
    """Whether a revision fails so many more of its sequences than the others do that it is no chance."""
    return new.errors >= MIN_ERRORS and new.error_ratio > others.error_ratio + most


class Fared:
    """How sequences have fared in the last ERROR_SECONDS: a revision's, and those of the others beside it."""

    def __init__(self) -> None:
        self._seen = deque[tuple[float, Outcomes, Outcomes]]()

    def note(self, new: Outcomes, others: Outcomes, now: float) -> None:
        """Take what has been counted until now."""
        self._seen.append((now, new, others))
        while now - self._seen[0][0] > ERROR_SECONDS:
            self._seen.popleft()

    def problem(self, most: float = 0.0) -> str:
        """Why the revision can't stay, as a sentence; empty while it fails at most this share more (0: the default)."""
        (_, new_before, others_before), (_, new, others) = self._seen[0], self._seen[-1]
        new, others = new - new_before, others - others_before
        if not fails_more(new, others, most or MAX_ERROR_RATIO):
            return ""
        before = f"{others.error_ratio:.1%}"
        return f"It failed {new.errors} of {new.sequences} sequences, where {before} of the others failed."


@dataclass(slots=True)
class _Course:
    """One deployment's way to a revision, and how sequences have fared meanwhile: the new one's, and the others'."""

    revision: int
    traffic: tuple[tuple[int, int], ...]
    came_from: int  # 0: there is no way back
    progressed: float
    ready: int = 0
    was_ready: bool = False
    well: float = 0.0  # when not all of its workers were unhealthy
    reason: str = ""
    done: float | None = None  # when all of its workers were ready
    lack: str = ""  # why fewer workers than wanted are ready, as a sentence
    fared: Fared = field(default_factory=Fared)

    def follow(self, state: RevisionState, new: Outcomes, others: Outcomes, now: float) -> None:
        """Note how it is now."""
        if state.ready > self.ready:
            self.progressed = now
        if state.unhealthy < max(1, state.workers):
            self.well = now
        self.ready, self.was_ready = state.ready, self.was_ready or state.ready > 0
        self.reason = state.reason or self.reason
        self.fared.note(new, others, now)

    def problem(self, state: RevisionState, rollout: pb.Rollout, now: float) -> str:
        """Why the revision can't stay, as a sentence; empty while it may."""
        if problem := self.fared.problem(rollout.max_error_ratio):
            return problem
        reason = f" {self.reason}" if self.reason else ""
        if self.done is not None:
            return ""
        if not self.was_ready and (state.restarts >= MOST_STARTS or now - self.well >= UNWELL_SECONDS):
            return f"None of its workers came up.{reason}"
        seconds = rollout.progress_seconds or PROGRESS_SECONDS
        if now - self.progressed >= seconds:
            return f"No other worker of it was ready within {seconds:g} s.{reason}"
        return ""


class Rollouts:
    """Follows the rollouts of all deployments. `outcomes` tells how a revision's sequences have fared."""

    def __init__(self, outcomes: OutcomesOf) -> None:
        self._outcomes = outcomes
        self._courses: dict[str, _Course] = {}

    def step(
        self,
        wishes: Iterable[pb.ModelDeployment],
        reports: Iterable[LauncherReport],
        records: Iterable[Record],
        now: float,
        waiting: Collection[str] = (),
    ) -> list[pb.ModelDeployment]:
        """The wishes that change now: those whose revision is stable from now on, and those that go back.

        `waiting` are the deployments that have no room for all their workers: no fault of a revision.
        """
        wishes, reports, records = list(wishes), tuple(reports), tuple(records)
        self._courses = {each.name: self._courses[each.name] for each in wishes if each.name in self._courses}
        changes = (self._step(each, reports, records, now, each.name in waiting) for each in wishes)
        return [each for each in changes if each is not None]

    def lacks(self) -> dict[str, str]:
        """Of each deployment whose present revision serves by fewer workers than wanted, why, as they said."""
        return {name: course.lack for name, course in self._courses.items() if course.lack and not course.came_from}

    def _step(
        self,
        wish: pb.ModelDeployment,
        reports: tuple[LauncherReport, ...],
        records: tuple[Record, ...],
        now: float,
        waits: bool,
    ) -> pb.ModelDeployment | None:
        course, wanted = self._course(wish, now), shares(wish)[wish.revision]
        mine = tuple(each for each in reports if each.spec.deployment == wish.name)
        state = state_of(wish, mine, records)
        others = (each.number for each in wish.revisions if each.number != wish.revision)
        rest = sum((self._outcomes(wish.name, each) for each in others), Outcomes())
        course.follow(state, self._outcomes(wish.name, wish.revision), rest, now)
        if waits or not wanted:
            course.progressed = now
        if course.came_from and (problem := course.problem(state, wish.rollout, now)):
            return taken_back(wish, course.came_from, problem)
        course.lack = _lack(state, wanted, course.reason)
        if state.ready >= wanted:
            course.reason = ""
        if course.done is None and state.ready >= max(1, wanted):
            course.done = now
        if course.done is None or wish.traffic:
            return None
        if now - course.done > ERROR_SECONDS:
            course.came_from = 0
        if wish.stable_revision == wish.revision:
            return None
        stable = copy_of(wish)
        stable.stable_revision = wish.revision
        return stable

    def _course(self, wish: pb.ModelDeployment, now: float) -> _Course:
        course, traffic = self._courses.get(wish.name), tuple((each.revision, each.percent) for each in wish.traffic)
        if course is None or course.revision != wish.revision:
            course = _Course(wish.revision, traffic, _way_back(wish), now, well=now)
        elif course.traffic != traffic:  # it is to have another share of the workers
            course.traffic, course.done, course.progressed = traffic, None, now
        self._courses[wish.name] = course
        return course


def _lack(state: RevisionState, wanted: int, reason: str) -> str:
    """Why some workers are not ready, as a sentence; empty where all are, nobody said why, or none is there to come."""
    if state.ready >= wanted or not reason or not state.workers:
        return ""
    return f"{state.ready} of {wanted} workers {'is' if wanted == 1 else 'are'} ready: {reason}"


def _way_back(wish: pb.ModelDeployment) -> int:
    """The revision that served before this one; 0 where there is none, or this one is itself the way back."""
    known = {each.number for each in wish.revisions}
    targets = {each.revision for each in wish.traffic} - {wish.revision}
    back = wish.stable_revision if wish.stable_revision != wish.revision else max(targets, default=0)
    return back if back in known and back < wish.revision else 0

"""Rollouts: when a revision is stable, and when it is taken back."""

from collections import defaultdict
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.launch_records import launcher, record

from polyfleet.scheduler.deployments.rollout import ERROR_SECONDS, UNWELL_SECONDS, Rollouts, fails_more
from polyfleet.scheduler.fleet.demand import Outcomes
from polyfleet.scheduler.fleet.record import Record
from polyfleet.scheduler.launcher.launch import LauncherReport, Phase
from polyfleet.scheduler.revisions import deployed
from polyfleet.v1 import fleet_pb2 as pb


class Fleet:
    """A deployment of two workers that goes from revision 1 to 2, and what its workers say."""

    def __init__(self, percent: int = 100, **rollout: float) -> None:
        self.old = deployed(None, pb.ModelDeployment(name="d", source="/one", workers=2), 1)
        self.old.stable_revision = 1
        wanted = pb.ModelDeployment(name="d", source="/two", workers=2, rollout=pb.Rollout(**rollout))  # type: ignore[arg-type]
        if percent < 100:
            wanted.traffic.add(revision=0, percent=percent)
            wanted.traffic.add(revision=1, percent=100 - percent)
        self.wish = deployed(self.old, wanted, 2)
        self.outcomes = defaultdict[int, Outcomes](Outcomes)
        self.rollouts = Rollouts(lambda _, number: self.outcomes[number])
        self.reports: list[LauncherReport] = []
        self.records: list[Record] = []

    def worker(self, name: str, state: str = "READY", reason: str = "", restarts: int = 0) -> None:
        """Of the new revision."""
        self.reports = [each for each in self.reports if each.spec.worker_id != name]
        self.records = [each for each in self.records if each.info.worker_id != name]
        self.reports.append(replace(launcher(name, self.wish), restarts=restarts, phase=Phase.WATCHING))
        found = record(name, state)
        found.status.reason = reason
        self.records.append(found)

    def at(self, now: float, *, waits: bool = False) -> tuple[int, int, str]:
        """Revision, stable revision, and the newest one's problem after a look at this time."""
        for changed in self.rollouts.step([self.wish], self.reports, self.records, now, ["d"] if waits else []):
            self.wish = changed
        return self.wish.revision, self.wish.stable_revision, self.wish.revisions[0].problem


def test_a_revision_is_stable_once_all_its_workers_are_ready() -> None:
    fleet = Fleet()
    assert fleet.at(0) == (2, 1, "")
    fleet.worker("a")
    fleet.worker("b", "LOADING")
    assert fleet.at(1) == (2, 1, "")
    fleet.worker("b")
    assert fleet.at(2) == (2, 2, "")


def test_the_first_revision_has_nothing_to_go_back_to() -> None:
    fleet = Fleet()
    fleet.wish = deployed(None, pb.ModelDeployment(name="d", source="/one", workers=2), 1)
    fleet.worker("a", "UNHEALTHY", "/one is truncated.", restarts=9)
    assert fleet.at(0) == (1, 0, "")
    assert fleet.at(9999) == (1, 0, "")


def test_what_a_deployment_lacks_without_a_way_back_is_said_until_all_are_ready() -> None:
    fleet = Fleet()
    fleet.wish = deployed(None, pb.ModelDeployment(name="d", source="/one", workers=2), 1)
    fleet.worker("a", "LOADING")
    fleet.at(0)
    assert fleet.rollouts.lacks() == {}, "nobody has said anything yet"
    fleet.worker("a", "UNHEALTHY", "/one is truncated.", restarts=1)
    fleet.at(1)
    assert fleet.rollouts.lacks() == {"d": "0 of 2 workers are ready: /one is truncated."}
    fleet.worker("a", "STARTING", restarts=2)
    fleet.at(2)
    assert fleet.rollouts.lacks() == {"d": "0 of 2 workers are ready: /one is truncated."}, "it is tried once more"
    fleet.worker("a")
    fleet.at(3)
    assert fleet.rollouts.lacks() == {"d": "1 of 2 workers are ready: /one is truncated."}
    reports, fleet.reports = fleet.reports, []
    fleet.at(3)
    assert fleet.rollouts.lacks() == {}, "none is there: others are about to be started"
    fleet.reports = reports
    fleet.worker("b")
    fleet.at(4)
    assert fleet.rollouts.lacks() == {}
    fleet.worker("b", "LOADING")
    fleet.at(5)
    assert fleet.rollouts.lacks() == {}, "the reason of before is none of now"


def test_a_rollout_with_a_way_back_says_why_it_is_taken_back_alone() -> None:
    fleet = Fleet()
    fleet.worker("a", "UNHEALTHY", "/two is truncated.", restarts=1)
    fleet.at(0)
    assert fleet.rollouts.lacks() == {}


def test_a_revision_whose_workers_end_again_and_again_is_taken_back_with_their_reason() -> None:
    fleet = Fleet()
    fleet.worker("a", "UNHEALTHY", "/two is truncated.", restarts=1)
    assert fleet.at(0)[0] == 2
    fleet.worker("a", "STARTING", restarts=2)
    assert fleet.at(1) == (1, 1, "None of its workers came up. /two is truncated.")


def test_a_revision_whose_canary_is_wrong_is_taken_back() -> None:
    fleet = Fleet()
    fleet.worker("a", "UNHEALTHY", "canary: wrong token 3")
    assert fleet.at(0)[0] == 2
    assert fleet.at(UNWELL_SECONDS - 1)[0] == 2
    assert fleet.at(UNWELL_SECONDS + 1) == (1, 1, "None of its workers came up. canary: wrong token 3")


def test_a_revision_that_comes_no_further_in_time_is_taken_back() -> None:
    fleet = Fleet(progress_seconds=60)
    fleet.worker("a", "LOADING")
    assert fleet.at(0)[0] == fleet.at(59)[0] == 2
    fleet.worker("a")
    fleet.worker("b", "LOADING")
    assert fleet.at(60)[0] == fleet.at(119)[0] == 2  # the first one's success counts anew
    assert fleet.at(120) == (1, 1, "No other worker of it was ready within 60 s.")


def test_who_waits_for_room_is_pending_and_not_taken_back() -> None:
    fleet = Fleet(progress_seconds=60)
    fleet.worker("a")
    assert {fleet.at(float(now), waits=True)[0] for now in range(0, 600, 10)} == {2}


def test_nothing_is_taken_back_while_no_worker_is_wished_for() -> None:
    fleet = Fleet(progress_seconds=60)
    fleet.wish.workers = 0
    assert fleet.at(0)[0] == fleet.at(1000)[0] == 2
    fleet.wish.workers = 1
    fleet.worker("a", "LOADING")
    assert fleet.at(1050)[0] == 2
    assert fleet.at(1061)[0] == 1


def test_a_revision_that_fails_requests_is_taken_back_though_it_came_up() -> None:
    fleet = Fleet()
    fleet.outcomes |= {1: Outcomes(1000, 10), 2: Outcomes(7, 7)}  # of before
    fleet.worker("a")
    fleet.worker("b")
    assert fleet.at(0) == (2, 2, "")
    fleet.outcomes |= {1: Outcomes(1100, 11), 2: Outcomes(107, 11)}
    assert fleet.at(10)[0] == 2
    fleet.outcomes[2] = Outcomes(117, 17)
    assert fleet.at(20) == (1, 2, "It failed 10 of 110 sequences, where 1.0% of the others failed.")
    assert fleet.at(21)[0] == 1  # the way back is not itself taken back
    fleet.outcomes[1] = Outcomes(2000, 900)
    assert fleet.at(22)[0] == 1


def test_errors_of_long_after_a_rollout_are_no_fault_of_it() -> None:
    fleet = Fleet()
    fleet.worker("a")
    fleet.worker("b")
    fleet.at(0)
    fleet.at(ERROR_SECONDS + 1)
    fleet.outcomes[2] = Outcomes(100, 100)
    assert fleet.at(ERROR_SECONDS + 2) == (2, 2, "")


def test_a_canary_is_watched_for_as_long_as_it_is_one() -> None:
    fleet = Fleet(percent=10)
    fleet.worker("a")
    assert fleet.at(0) == fleet.at(10_000) == (2, 1, "")
    fleet.outcomes[2] = Outcomes(20, 6)
    assert fleet.at(10_001)[:2] == (1, 1)
    assert not fleet.wish.traffic


def test_a_canary_with_all_requests_is_stable_once_all_its_workers_are_ready() -> None:
    fleet = Fleet(percent=10)
    fleet.worker("a")
    assert fleet.at(0) == (2, 1, "")
    del fleet.wish.traffic[:]
    assert fleet.at(1) == (2, 1, "")
    fleet.worker("b")
    assert fleet.at(2) == (2, 2, "")


@pytest.mark.parametrize(("new", "old"), [((4, 4), (100, 0)), ((100, 5), (100, 0)), ((100, 30), (100, 26))])
def test_few_errors_or_hardly_more_than_before_are_no_reason(new: tuple[int, int], old: tuple[int, int]) -> None:
    assert not fails_more(Outcomes(*new), Outcomes(*old), 0.05)


@given(st.integers(0, 1000), st.integers(0, 1000), st.integers(0, 1000), st.integers(0, 1000), st.floats(0, 1))
def test_more_errors_never_make_a_revision_better(
    sequences: int, errors: int, others: int, other_errors: int, most: float
) -> None:
    new, rest = Outcomes(sequences, min(errors, sequences)), Outcomes(others, min(other_errors, others))
    if fails_more(new, rest, most):
        assert fails_more(Outcomes(new.sequences + 1, new.errors + 1), rest, most)
        assert not fails_more(rest, new, most)

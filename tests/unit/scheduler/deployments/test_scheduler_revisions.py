"""Revisions of a deployment: which changes make one, shares of requests and workers, going back."""

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyfleet.scheduler.revisions import (
    MOST_KEPT,
    RolloutError,
    deployed,
    generations,
    newest_problem,
    numbered,
    shares,
    taken_back,
    undone,
)
from polyfleet.v1 import fleet_pb2 as pb
from polyfleet.wire.limits import FieldError


def wished(source: str = "/one", workers: int = 10, **more: object) -> pb.ModelDeployment:
    return pb.ModelDeployment(name="d", source=source, workers=workers, **more)  # type: ignore[arg-type]


def history(*sources: str) -> pb.ModelDeployment:
    wish = deployed(None, wished(sources[0]), 100)
    for source in sources[1:]:
        wish = deployed(wish, wished(source), 200)
    return wish


def numbers(wish: pb.ModelDeployment) -> list[int]:
    return [each.number for each in wish.revisions]


def shared(wish: pb.ModelDeployment, **percents: int) -> pb.ModelDeployment:
    """The wish with these shares: `_0=10` is 10 % for the revision that the call describes."""
    copy = pb.ModelDeployment()
    copy.CopyFrom(wish)
    del copy.traffic[:]
    for name, percent in percents.items():
        copy.traffic.add(revision=int(name[1:]), percent=percent)
    return copy


def test_another_model_or_other_options_are_another_revision_and_more_workers_are_not() -> None:
    first = deployed(None, wished(), 100)
    assert (first.revision, numbers(first), first.created_unix_seconds) == (1, [1], 100)
    grown = deployed(first, wished(workers=20), 200)
    assert (grown.revision, numbers(grown), grown.workers, grown.created_unix_seconds) == (1, [1], 20, 100)
    second = deployed(grown, wished(options=pb.WorkerOptions(threads=2)), 300)
    third = deployed(second, wished("/two"), 400)
    assert (second.revision, third.revision, numbers(third)) == (2, 3, [3, 2, 1])
    assert [each.source for each in third.revisions] == ["/two", "/one", "/one"]


def test_what_a_revision_had_before_is_that_revision_again() -> None:
    back = deployed(history("/one", "/two"), wished("/one"), 300)
    assert (back.revision, back.source, numbers(back)) == (1, "/one", [2, 1])
    assert deployed(back, wished("/three"), 400).revision == 3


def test_a_name_that_says_nothing_is_the_deployments_own() -> None:
    assert deployed(history("/one"), wished("/one", model_name="d"), 300).revision == 1
    assert deployed(history("/one"), wished("/one", model_name="e"), 300).revision == 2


def test_a_change_of_what_has_changed_meanwhile_is_refused() -> None:
    now = history("/one", "/two")
    assert deployed(now, wished("/three", revision=2), 300).revision == 3
    with pytest.raises(RolloutError, match="it is at revision 2, not 1") as caught:
        deployed(now, wished("/three", revision=1), 300)
    assert caught.value.code is grpc.StatusCode.ABORTED


def test_what_an_older_version_stored_is_the_first_revision() -> None:
    old = numbered(wished(created_unix_seconds=7))
    assert (old.revision, old.stable_revision, old.revisions[0].source) == (1, 1, "/one")
    assert numbered(old) is old
    assert numbers(old) == [1]


def test_only_the_last_ones_are_kept_and_those_in_use() -> None:
    wish = history(*(f"/{each}" for each in range(20)))
    assert numbers(wish) == list(range(20, 20 - MOST_KEPT, -1))
    wish.stable_revision = 11
    for each in range(20, 30):
        wish = deployed(wish, wished(f"/{each}"), 300)
    assert numbers(wish) == [*range(30, 20, -1), 11]


def test_a_canary_is_the_new_revision_with_its_share() -> None:
    canary = deployed(history("/one"), shared(wished("/two"), _0=10, _1=90), 300)
    assert canary.revision == 2
    assert [(each.revision, each.percent) for each in canary.traffic] == [(2, 10), (1, 90)]
    assert shares(canary) == {2: 1, 1: 9}
    grown = deployed(canary, shared(canary, _1=50, _2=50), 400)
    assert (grown.revision, shares(grown)) == (2, {2: 5, 1: 5})
    assert deployed(grown, grown, 400) == grown
    assert shares(deployed(grown, shared(grown, _2=100), 500)) == {2: 10}
    stopped = deployed(grown, shared(grown, _1=100), 500)
    assert (stopped.revision, stopped.source, shares(stopped)) == (1, "/one", {1: 10})
    assert shares(deployed(grown, shared(grown, _1=0, _2=100), 500)) == {2: 10}


def test_another_revision_ends_the_shares() -> None:
    canary = deployed(history("/one"), shared(wished("/two"), _0=10, _1=90), 300)
    changed = pb.ModelDeployment()
    changed.CopyFrom(canary)
    changed.source = "/three"
    assert shares(deployed(canary, changed, 400)) == {3: 10}


@pytest.mark.parametrize(
    ("percents", "problem"),
    [
        ({"_1": 90}, "must add up to 100 percent, not 90"),
        ({"_1": 90, "_2": 20}, "must add up to 100 percent, not 110"),
        ({"_1": 4294967295, "_2": 101}, "must add up to 100 percent, not 4294967396"),
        ({"_7": 100}, r"must name revisions that there are \(1, 2\), not 7"),
        ({"_0": 50, "_2": 50}, "must name each revision once"),
    ],
)
def test_shares_that_make_no_sense_are_refused(percents: dict[str, int], problem: str) -> None:
    now = history("/one", "/two")
    with pytest.raises(FieldError, match=problem):
        deployed(now, shared(now, **percents), 300)


def test_shares_between_two_names_are_refused() -> None:
    now = deployed(history("/one"), wished("/two", model_name="other"), 300)
    with pytest.raises(FieldError, match="between revisions of one name, not d, other"):
        deployed(now, shared(now, _1=50, _2=50), 400)


def test_undo_goes_to_the_revision_before_and_says_when_there_is_none() -> None:
    now = history("/one", "/two", "/three")
    back = undone(now)
    assert (back.revision, back.source) == (2, "/two")
    assert (undone(undone(now)).revision, undone(now, 1).revision) == (1, 1)
    for wish, to, code in (
        (history("/one"), 0, grpc.StatusCode.FAILED_PRECONDITION),
        (undone(now, 1), 0, grpc.StatusCode.FAILED_PRECONDITION),
        (now, 3, grpc.StatusCode.FAILED_PRECONDITION),
        (now, 9, grpc.StatusCode.NOT_FOUND),
    ):
        with pytest.raises(RolloutError) as caught:
            undone(wish, to)
        assert caught.value.code is code


def test_undo_passes_over_what_was_taken_back_and_ends_the_shares() -> None:
    bad = taken_back(history("/one", "/two"), 1, "It is bad.")
    assert undone(deployed(bad, wished("/three"), 300)).revision == 1
    canary = deployed(history("/one"), shared(wished("/two"), _0=10, _1=90), 300)
    assert shares(undone(canary)) == {1: 10}
    assert shares(undone(canary, 2)) == {2: 10}


def test_what_was_taken_back_says_why_until_it_is_wished_for_again() -> None:
    bad = taken_back(history("/one", "/two"), 1, "It is bad.")
    assert (bad.revision, bad.source) == (1, "/one")
    assert newest_problem(bad) == "Revision 2 was taken back, and revision 1 serves: It is bad."
    assert newest_problem(deployed(bad, wished("/three"), 300)) == ""
    again = deployed(bad, wished("/two"), 300)
    assert (again.revision, again.revisions[0].problem, newest_problem(again)) == (2, "", "")


def test_workers_are_told_apart_by_what_they_load() -> None:
    assert sorted(generations(history("/one", "/two")).values()) == [1, 2]


@given(st.integers(0, 1000), st.lists(st.integers(1, 30), min_size=2, max_size=4))
def test_every_revision_with_requests_has_a_worker_and_hardly_more_than_wished_for(
    workers: int, weights: list[int]
) -> None:
    total = sum(weights)
    percents = [weight * 100 // total for weight in weights]
    percents[0] += 100 - sum(percents)
    now = history(*(f"/{each}" for each in range(len(weights))))
    found = shares(
        deployed(
            now, shared(wished(f"/{len(weights) - 1}", workers), **{f"_{i + 1}": p for i, p in enumerate(percents)}), 1
        )
    )
    assert all(bool(count) == bool(workers) for count in found.values())
    assert abs(sum(found.values()) - workers) <= len(weights)

"""Which revision a request goes to."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyfleet.gateway.fleet.traffic import Target, choose, targets_of
from polyfleet.placement.filters import OTHER_REVISION, outvoted
from polyfleet.placement.fleet import FleetSnapshot, PlacementRequest, Revision, Worker, WorkerState
from polyfleet.placement.place import place
from polyfleet.v1 import fleet_pb2 as pb

WISH = pb.ModelDeployment(name="d", model_name="m", workers=4)


def worker(worker_id: str, fingerprint: str, revision: int = 0, deployment: str = "d") -> Worker:
    number = Revision(deployment, revision) if revision else None
    facts = {"fingerprint": fingerprint, "revision": number, "deployment": deployment, "context_length": 100}
    return Worker(worker_id, "a:1", "m", "cpu", WorkerState.READY, **facts)  # type: ignore[arg-type]


OLD = [worker(f"old-{each}", "f-1", 1) for each in range(3)]
NEW = worker("new", "f-2", 2)


def canary(percent: int) -> pb.ModelDeployment:
    wish = pb.ModelDeployment(name="d", model_name="m", workers=4)
    wish.traffic.add(revision=1, percent=100 - percent)
    wish.traffic.add(revision=2, percent=percent)
    return wish


def parts(targets: tuple[Target, ...], keys: int = 2000) -> dict[str, float]:
    counts = Counter(choose(targets, str(each)).fingerprint for each in range(keys))
    return {print_: count / keys for print_, count in counts.items()}


def test_one_revision_leaves_nothing_to_choose() -> None:
    assert targets_of("m", [WISH], OLD) == targets_of("m", [canary(10)], OLD) == targets_of("m", [canary(10)], []) == ()


def test_while_a_deployment_changes_each_revision_gets_requests_as_it_has_workers() -> None:
    targets = targets_of("m", [WISH], [*OLD, NEW])
    assert targets == (Target(1, "f-2", None), Target(3, "f-1", None))
    assert parts(targets)["f-2"] == pytest.approx(0.25, abs=0.03)


def test_workers_of_no_revision_are_outvoted_as_before() -> None:
    strays = [worker("s-1", "f-1"), worker("s-2", "f-2"), worker("s-3", "f-2")]
    assert targets_of("m", [WISH], strays) == ()
    assert outvoted(strays) == {"s-1"}
    assert outvoted([*OLD, NEW]) == frozenset()


def test_shares_say_which_part_of_the_requests_a_revision_gets() -> None:
    targets = targets_of("m", [canary(10)], [*OLD, NEW])
    assert [(each.fingerprint, each.revision) for each in targets] == [
        ("f-2", Revision("d", 2)),
        ("f-1", Revision("d", 1)),
    ]
    assert parts(targets)["f-2"] == pytest.approx(0.1, abs=0.02)


def test_another_deployment_of_the_model_gets_its_part_by_its_workers() -> None:
    others = [worker(f"other-{each}", "f-1", 7, "e") for each in range(4)]
    targets = targets_of("m", [canary(50), pb.ModelDeployment(name="e", model_name="m")], [*OLD, NEW, *others])
    assert [each.weight for each in targets] == [2, 2, 4]
    assert targets[-1] == Target(4, "f-1", None)


def pools(*percents: int) -> list[pb.ModelDeployment]:
    named = zip("ab", percents, strict=True)
    return [pb.ModelDeployment(name=name, model_name="m", traffic_percent=percent) for name, percent in named]


POOL_A = [worker(f"a-{each}", "f-1", 1, "a") for each in range(3)]
POOL_B = [worker("b-0", "f-2", 1, "b")]


@pytest.mark.parametrize("percent", [10, 50, 90])
def test_pools_of_one_model_share_its_requests_as_they_are_told(percent: int) -> None:
    targets = targets_of("m", pools(100 - percent, percent), [*POOL_A, *POOL_B])
    assert [each.revision for each in targets] == [Revision("a", 1), Revision("b", 1)]
    assert parts(targets)["f-2"] == pytest.approx(percent / 100, abs=0.03)


def test_pools_of_the_same_weights_are_told_apart() -> None:
    alike = [worker("b-0", "f-1", 1, "b")]
    targets = targets_of("m", pools(70, 30), [*POOL_A, *alike])
    chosen = Counter(choose(targets, str(each)).revision for each in range(2000))
    assert chosen[Revision("b", 1)] / 2000 == pytest.approx(0.3, abs=0.03)


def test_a_pool_that_has_no_ready_worker_or_no_share_gets_nothing_while_another_can_serve() -> None:
    assert parts(targets_of("m", pools(10, 90), POOL_A)) == {"f-1": 1.0}
    assert parts(targets_of("m", pools(100, 0), [*POOL_A, *POOL_B])) == {"f-1": 1.0}
    assert targets_of("m", pools(100, 0), POOL_B) == ()  # as if nothing had been said: it serves


@given(st.integers(1, 98), st.integers(1, 98), st.text(max_size=20))
def test_a_session_stays_with_a_pool_whose_share_grows(one: int, other: int, key: str) -> None:
    small, large = sorted((one, other))
    if choose(targets_of("m", pools(100 - small, small), [*POOL_A, *POOL_B]), key).fingerprint == "f-2":
        assert choose(targets_of("m", pools(100 - large, large), [*POOL_A, *POOL_B]), key).fingerprint == "f-2"


@given(st.integers(1, 98), st.integers(1, 98), st.text(max_size=20))
def test_who_was_given_to_a_canary_stays_with_it_while_it_grows(one: int, other: int, key: str) -> None:
    small, large = sorted((one, other))
    if choose(targets_of("m", [canary(small)], [*OLD, NEW]), key).fingerprint == "f-2":
        assert choose(targets_of("m", [canary(large)], [*OLD, NEW]), key).fingerprint == "f-2"


def test_placement_keeps_to_the_revision_while_that_can_serve() -> None:
    same = [worker("old", "f", 1), worker("new", "f", 2)]
    fleet = FleetSnapshot("e", 1, tuple(same))
    wanted = PlacementRequest("m", 5, 5, fingerprint="f", revision=Revision("d", 2))
    placed = place(wanted, fleet)
    assert placed.worker is same[1]
    assert placed.verdicts[0].dropped == OTHER_REVISION
    excluded = PlacementRequest("m", 5, 5, frozenset({"new"}), fingerprint="f", revision=Revision("d", 2))
    assert place(excluded, fleet).worker is same[0]

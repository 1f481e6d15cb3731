"""reconcile(): single steps by example."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from tests.support.fake_cluster import node
from tests.support.launch_records import WISH, launcher, record

from polyfleet.scheduler.config import LaunchConfig
from polyfleet.scheduler.deployments.reconcile import DrainWorker, Forget, Launch, Relaunch, Retire, reconcile
from polyfleet.scheduler.fleet.record import Record
from polyfleet.scheduler.launcher.launch import Phase
from polyfleet.v1 import fleet_pb2 as pb


def launches(actions: Sequence[object]) -> list[tuple[str, str]]:
    return [(action.accelerator, action.node.node_id) for action in actions if isinstance(action, Launch)]


def test_missing_workers_are_launched_where_there_is_most_room() -> None:
    nodes = [node("n-1", cpu=1), node("n-2", cpu=3)]
    plan = reconcile([WISH], [], [], nodes)
    assert launches(plan.actions) == [("cpu", "n-2"), ("cpu", "n-2")]
    assert not plan.problems


def places(actions: Sequence[object]) -> list[tuple[str, int]]:
    return [(action.node.node_id, action.place) for action in actions if isinstance(action, Launch)]


def test_each_worker_of_a_node_has_a_place_of_its_own() -> None:
    wish = pb.ModelDeployment(name="d", source="/m", workers=5, accelerators=["cuda"])
    nodes = [node("n-1", cuda=3), node("n-2", cuda=2)]
    plan = reconcile([wish], [], [], nodes)
    assert sorted(places(plan.actions)) == [("n-1", 0), ("n-1", 1), ("n-1", 2), ("n-2", 0), ("n-2", 1)]


def test_a_place_that_was_left_is_taken_again() -> None:
    wish = pb.ModelDeployment(name="d", source="/m", workers=3, accelerators=["cuda"])
    kept = launcher("w-2", wish, accelerator="cuda")
    kept = replace(kept, spec=replace(kept.spec, place=1))
    alone = record("w-9")
    alone.info.accelerator, alone.info.device_index = "cuda", 0
    plan = reconcile([wish], [kept], [alone], [node("n-1", cuda=4)])
    assert places(plan.actions) == [("n-1", 2)]


def test_a_worker_of_several_ranks_takes_devices_side_by_side() -> None:
    wish = pb.ModelDeployment(name="d", source="/m", workers=4, accelerators=["cuda"])
    wish.options.tensor_parallel = 2
    kept = launcher("w-2", wish, accelerator="cuda")
    kept = replace(kept, spec=replace(kept.spec, place=2))
    alone = record("w-9")
    alone.info.accelerator, alone.info.device_index, alone.info.num_devices = "cuda", 5, 2
    plan = reconcile([wish], [kept], [alone], [node("n-1", cuda=8)])
    assert places(plan.actions) == [("n-1", 0)]
    assert plan.problems == {"d": "No node of the cluster has 2 cuda devices side by side that are free."}
    elsewhere = reconcile([wish], [kept], [alone], [node("n-1", cuda=8), node("n-2", cuda=1), node("n-3", cuda=2)])
    assert places(elsewhere.actions) == [("n-1", 0), ("n-3", 0)]


@pytest.mark.parametrize(("accelerator", "attach"), [("cpu", ()), ("cuda", ("cuda",))])
def test_ranks_that_share_a_place_take_one(accelerator: str, attach: tuple[str, ...]) -> None:
    wish = pb.ModelDeployment(name="d", source="/m", workers=2, accelerators=[accelerator])
    wish.options.tensor_parallel = 4
    plan = reconcile([wish], [], [], [node("n-1", **{accelerator: 2})], attach=attach)
    assert places(plan.actions) == [("n-1", 0), ("n-1", 1)]


def test_a_fleet_as_wished_is_left_alone() -> None:
    reports = [launcher("w-1"), replace(launcher("w-2"), phase=Phase.FAILED)]
    assert reconcile([WISH], reports, [record("w-1")], [node(cpu=4)]).actions == []


def test_families_are_taken_in_order_of_preference() -> None:
    wish = pb.ModelDeployment(name="d", source="/m", workers=3, accelerators=["cuda", "cpu"])
    plan = reconcile([wish], [], [], [node("n-1", cpu=2, cuda=1)])
    assert [accelerator for accelerator, _ in launches(plan.actions)] == ["cuda", "cpu", "cpu"]


def test_no_preference_means_the_best_that_the_cluster_has() -> None:
    plan = reconcile([WISH], [], [], [node("n-1", cpu=2, rocm=1)])
    assert [accelerator for accelerator, _ in launches(plan.actions)] == ["rocm", "cpu"]


def test_a_full_or_unfit_cluster_is_named() -> None:
    assert reconcile([WISH], [], [], [node(cpu=1)]).problems == {"d": "All places for cpu workers are taken."}
    wish = pb.ModelDeployment(name="d", source="/m", workers=1, accelerators=["cuda", "rocm"])
    assert reconcile([wish], [], [], [node(cpu=1)]).problems == {"d": "No node of the cluster has cuda or rocm."}


def test_places_of_launchers_on_their_way_out_are_not_free_yet() -> None:
    leaving = replace(launcher("w-1"), stopping=True)
    wish = pb.ModelDeployment(name="d", source="/m.gguf", workers=1)
    assert reconcile([wish], [leaving], [], [node(cpu=1)]).actions == []


def test_fewer_workers_retires_those_that_are_not_ready_first() -> None:
    wish = pb.ModelDeployment(name="d", source="/m.gguf", workers=1)
    plan = reconcile(
        [wish], [launcher("w-1"), launcher("w-2")], [record("w-1", "LOADING"), record("w-2")], [node(cpu=4)]
    )
    assert plan.actions == [Retire("w-1")]


def test_an_undeployed_model_is_retired() -> None:
    assert reconcile([], [launcher("w-1")], [record("w-1")], [node(cpu=4)]).actions == [Retire("w-1")]
    told = replace(launcher("w-1"), stopping=True)
    assert reconcile([], [told], [record("w-1")], [node(cpu=4)]).actions == []


def test_a_draining_worker_is_replaced_at_once_and_left_to_finish() -> None:
    plan = reconcile(
        [WISH], [launcher("w-1"), launcher("w-2")], [record("w-1", "DRAINING"), record("w-2")], [node(cpu=4)]
    )
    assert launches(plan.actions) == [("cpu", "n-1")]
    assert len(plan.actions) == 1


def test_launchers_whose_worker_left_or_whose_node_is_gone_are_forgotten_and_replaced() -> None:
    reports = [replace(launcher("w-1"), phase=Phase.LEFT), launcher("w-2", host="n-gone")]
    plan = reconcile([WISH], reports, [], [node(cpu=4)])
    assert plan.actions[:2] == [Forget("w-1"), Forget("w-2")]
    assert len(launches(plan.actions)) == 2


def test_a_changed_model_is_rolled_over_new_ones_first() -> None:
    changed = pb.ModelDeployment(name="d", source="/other.gguf", workers=2)
    old = [launcher("w-1"), launcher("w-2")]
    both = [record("w-1"), record("w-2")]
    plan = reconcile([changed], old, both, [node(cpu=4)])
    assert len(launches(plan.actions)) == len(plan.actions) == 1
    new = [launcher("w-3", changed), launcher("w-4", changed)]
    loading = [*both, record("w-3", "LOADING")]
    assert reconcile([changed], [*old, new[0]], loading, [node(cpu=4)]).actions == []
    half = [*both, record("w-3"), record("w-4", "LOADING")]
    assert reconcile([changed], old + new, half, [node(cpu=4)]).actions == [Retire("w-1")]


def test_as_many_come_up_at_once_as_the_rollout_says() -> None:
    changed = pb.ModelDeployment(name="d", source="/other.gguf", workers=2, rollout=pb.Rollout(max_surge=2))
    old = [launcher("w-1"), launcher("w-2")]
    plan = reconcile([changed], old, [record("w-1"), record("w-2")], [node(cpu=4)])
    assert len(launches(plan.actions)) == len(plan.actions) == 2


def test_without_room_for_both_one_old_worker_makes_way() -> None:
    changed = pb.ModelDeployment(name="d", source="/other.gguf", workers=2)
    old = [launcher("w-1"), launcher("w-2")]
    both = [record("w-1"), record("w-2")]
    assert reconcile([changed], old, both, [node(cpu=2)]).actions == [Retire("w-1")]
    leaving = [replace(old[0], stopping=True), old[1]]
    assert Retire("w-2") not in reconcile([changed], leaving, both, [node(cpu=2)]).actions


def test_a_family_that_is_not_wished_any_more_is_rolled_over() -> None:
    wish = pb.ModelDeployment(name="d", source="/m.gguf", workers=1, accelerators=["cuda"])
    plan = reconcile([wish], [launcher("w-1")], [record("w-1")], [node(cpu=1, cuda=1)])
    assert launches(plan.actions) == [("cuda", "n-1")]


def test_old_workers_stay_when_the_cluster_has_no_place_for_what_is_wished_instead() -> None:
    wish = pb.ModelDeployment(name="d", source="/m.gguf", workers=1, accelerators=["cuda"])
    plan = reconcile([wish], [launcher("w-1")], [record("w-1")], [node(cpu=1)])
    assert plan.actions == []
    assert plan.problems == {"d": "No node of the cluster has cuda."}


def test_workers_that_outlived_their_launchers_count_and_hold_their_place() -> None:
    plan = reconcile([WISH], [], [record("w-1"), record("w-2")], [node(cpu=2)])
    assert plan.actions == []
    plan = reconcile([WISH], [], [record("w-1"), record("w-2", "LOST")], [node(cpu=2)])
    assert launches(plan.actions) == [("cpu", "n-1")]
    three = pb.ModelDeployment(name="d", source="/m.gguf", workers=3)
    assert reconcile([three], [], [record("w-1"), record("w-2")], [node(cpu=2)]).problems


def test_workers_that_ray_forgot_get_launchers_again_where_they_run() -> None:
    specs = {worker_id: launcher(worker_id).spec for worker_id in ("w-1", "w-2", "w-3", "w-4")}
    specs["w-3"] = replace(specs["w-3"], launch=LaunchConfig(mode="attach", address="127.0.0.1:1"))
    wish = pb.ModelDeployment(name="d", source="/m.gguf", workers=4)
    workers = [record("w-1"), record("w-2", host="n-9"), record("w-3"), record("w-4", "LOST"), record("w-5")]
    node_now = replace(node("n-1"), node_id="n-1 as Ray names it now")
    plan = reconcile([wish], [], workers, [node_now], known=specs)
    assert plan.actions == [Relaunch(replace(specs["w-1"], node_id="n-1 as Ray names it now"))]
    assert reconcile([], [], workers, [node_now], ["d"], known=specs).actions == [
        DrainWorker(f"w-{number}") for number in (1, 2, 3, 5)
    ]


def test_a_worker_without_launcher_counts_while_it_loads_and_not_without_a_model() -> None:
    wish = pb.ModelDeployment(name="d", source="/m.gguf", workers=1)
    assert reconcile([wish], [], [record("w-1", "LOADING")], [node(cpu=4)]).actions == []
    assert launches(reconcile([wish], [], [record("w-1", "STARTING")], [node(cpu=4)]).actions) == [("cpu", "n-1")]


def test_surplus_workers_without_launcher_are_drained() -> None:
    wish = pb.ModelDeployment(name="d", source="/m.gguf", workers=1)
    assert reconcile([wish], [], [record("w-1"), record("w-2")], [node(cpu=4)]).actions == [DrainWorker("w-1")]


ONE = pb.ModelDeployment(name="d", source="/m.gguf", workers=1)


@pytest.mark.parametrize("state", ["UNSPECIFIED", "STARTING", "LOADING", "UNHEALTHY", "DRAINING", "LOST"])
def test_a_ready_worker_never_goes_for_one_that_is_not(state: str) -> None:
    forged = record("w-0", state)
    forged.info.model.name = "d"
    plan = reconcile([ONE], [launcher("w-1")], [forged, record("w-1")], [node(cpu=4)])
    assert all(action == DrainWorker("w-0") for action in plan.actions)
    assert reconcile([ONE], [launcher("w-1")], [record("w-1")], [node(cpu=4)]).actions == []


def test_only_what_serves_or_loads_fulfils_a_wish_without_a_launcher() -> None:
    for state in ("UNSPECIFIED", "STARTING", "UNHEALTHY"):
        forged = record("w-0", state)
        forged.info.model.name = "d"
        assert launches(reconcile([ONE], [], [forged], [node(cpu=4)]).actions) == [("cpu", "n-1")]


def own(worker_id: str, deployment: str = "d") -> Record:
    found = record(worker_id, deployment=deployment)
    found.info.own_model = True
    return found


def test_a_worker_with_its_own_model_fulfils_no_wish_and_is_left_alone() -> None:
    plan = reconcile([ONE], [], [own("w-own")], [node(cpu=4)])
    assert launches(plan.actions) == [("cpu", "n-1")]
    assert len(plan.actions) == 1
    assert reconcile([ONE], [launcher("w-1")], [own("w-own"), record("w-1")], [node(cpu=4)]).actions == []
    assert reconcile([], [], [own("w-own", "gone")], [node(cpu=4)], removed={"gone"}).actions == []


def test_a_wish_that_finds_only_workers_with_their_own_models_waits() -> None:
    plan = reconcile([ONE], [], [own("w-own", "pool")], [node(cpu=1)], attach={"cpu"})
    assert plan.actions == []
    assert plan.problems == {"d": "All places for cpu workers are taken."}


def test_what_a_launcher_waits_for_is_the_deployments_problem() -> None:
    waiting = replace(launcher("w-1"), phase=Phase.STARTING, reason="It waits for a worker at 127.0.0.1:1.")
    assert reconcile([ONE], [waiting], [], [node(cpu=1)]).problems == {"d": "It waits for a worker at 127.0.0.1:1."}


def test_workers_of_a_removed_deployment_are_drained_and_of_an_unknown_one_left_alone() -> None:
    records = [
        record("w-1", deployment="gone"),
        record("w-2", deployment="never-heard-of"),
        record("w-3", deployment=""),
    ]
    assert reconcile([], [], records, [node(cpu=4)], removed={"gone"}).actions == [DrainWorker("w-1")]


def test_an_attached_worker_is_known_by_the_id_that_it_gave_itself() -> None:
    attached = replace(launcher("w-1"), worker_id="w-own")
    one = pb.ModelDeployment(name="d", source="/m.gguf", workers=1)
    assert reconcile([one], [attached], [record("w-own")], [node(cpu=1)]).actions == []


@pytest.mark.parametrize("order", [[0, 1], [1, 0]])
def test_the_older_deployment_gets_the_last_place(order: list[int]) -> None:
    wishes = [
        pb.ModelDeployment(name="z", source="/m", workers=1, created_unix_seconds=1),
        pb.ModelDeployment(name="a", source="/m", workers=1, created_unix_seconds=2),
    ]
    plan = reconcile([wishes[i] for i in order], [], [], [node(cpu=1)])
    assert [action.deployment.name for action in plan.actions if isinstance(action, Launch)] == ["z"]
    assert set(plan.problems) == {"a"}


def test_a_third_partys_family_waits_for_its_node_and_comes_behind_all_others() -> None:
    named = pb.ModelDeployment(name="d", source="/m", workers=1, accelerators=["metax"])
    assert reconcile([named], [], [], [node(cpu=1)]).problems == {"d": "No node of the cluster has metax."}
    assert launches(reconcile([named], [], [], [node("n-1", cpu=1, metax=1)]).actions) == [("metax", "n-1")]
    unnamed = pb.ModelDeployment(name="d", source="/m", workers=3)
    plan = reconcile([unnamed], [], [], [node("n-1", metax=2, cpu=1, iluvatar=1)])
    assert [family for family, _ in launches(plan.actions)] == ["cpu", "iluvatar", "metax"]

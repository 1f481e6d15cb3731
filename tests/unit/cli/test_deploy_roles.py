"""Roles: whose word counts for a worker, and what people are told of a deployment's."""

import pytest

from polyfleet.cli.commands.deploy import changed, lacks_partner
from polyfleet.cli.commands.fleet import worker_record
from polyfleet.cli.words import role_name
from polyfleet.scheduler.deployments.validate import check_deployment
from polyfleet.scheduler.fleet.registry import Registry
from polyfleet.v1 import fleet_pb2 as pb
from polyfleet.wire.limits import FieldError

BOTH, PREFILL, DECODE = (
    pb.WORKER_ROLE_UNSPECIFIED,
    pb.WORKER_ROLE_PREFILL,
    pb.WORKER_ROLE_DECODE,
)


def wish(name: str, role: "pb.WorkerRole.ValueType", model: str = "m") -> pb.ModelDeployment:
    return pb.ModelDeployment(name=name, model_name=model, source="m.gguf", role=role)


@pytest.mark.parametrize(
    ("others", "role", "missing"),
    [
        ([], BOTH, ""),
        ([], DECODE, "Nothing of role prefill serves m"),
        ([], PREFILL, "Nothing else serves m"),
        ([wish("other", PREFILL, "another")], DECODE, "Nothing of role prefill serves m"),
        ([wish("other", PREFILL)], DECODE, ""),
        ([wish("other", DECODE)], PREFILL, ""),
        ([wish("other", BOTH)], PREFILL, ""),
    ],
)
def test_a_role_without_its_other_part_is_told_of(
    others: list[pb.ModelDeployment], role: "pb.WorkerRole.ValueType", missing: str
) -> None:
    mine = wish("mine", role)
    for known in (
        pb.FleetSnapshot(deployments=[mine, *others]),
        pb.FleetSnapshot(deployments=[mine], pools=others),
    ):
        assert lacks_partner(known, mine).startswith(missing)
        assert bool(lacks_partner(known, mine)) == bool(missing)


def test_workers_by_hand_are_a_deployments_other_part() -> None:
    def beside(role: "pb.WorkerRole.ValueType", model: str = "m", deployment: str = "") -> pb.FleetSnapshot:
        info = pb.WorkerInfo(worker_id="w", deployment=deployment, role=role, intended_model=model)
        return pb.FleetSnapshot(workers=[pb.FleetWorker(info=info)])

    decode, prefill = wish("mine", DECODE), wish("mine", PREFILL)
    assert lacks_partner(beside(PREFILL), decode) == lacks_partner(beside(BOTH), prefill) == ""
    for known in (beside(DECODE), beside(PREFILL, "another"), beside(PREFILL, deployment="mine")):
        assert lacks_partner(known, decode).startswith("Nothing of role prefill serves m")
    assert lacks_partner(beside(PREFILL), prefill).startswith("Nothing else serves m")


def test_a_role_is_set_kept_and_taken_away() -> None:
    nothing = dict.fromkeys(
        ("workers", "model_name", "accelerators", "role", "max_surge", "progress_seconds", "max_error_ratio")
    ) | dict.fromkeys(("min_workers", "max_workers", "queue_seconds", "kv_use", "idle_seconds", "down_seconds"))
    mine = changed(wish("mine", BOTH), {**nothing, "role": "decode"}, {})
    assert role_name(mine.role) == "decode"
    assert changed(mine, nothing, {}).role == DECODE
    assert changed(mine, {**nothing, "role": "both"}, {}).role == BOTH


def test_a_role_of_a_newer_version_is_refused_in_a_wish_and_taken_for_both_of_a_worker() -> None:
    strange = pb.ModelDeployment(name="mine", source="m.gguf")
    strange.role = 9  # type: ignore[assignment]
    with pytest.raises(FieldError, match=r"deployment\.role"):
        check_deployment(strange)
    assert role_name(9) == "both"


def test_a_workers_own_role_counts_where_it_is_of_no_deployment_or_pool() -> None:
    registry = Registry("epoch", [wish("pool", DECODE)])
    registry.set_deployments([wish("mine", PREFILL), wish("all", BOTH)])
    told = {"mine": BOTH, "pool": PREFILL, "all": DECODE, "": PREFILL, "gone": DECODE}
    for stream, (deployment, role) in enumerate(told.items()):
        info = pb.WorkerInfo(worker_id=f"w-{deployment}", deployment=deployment, role=role)
        registry.register(info, stream, now=0.0)
    shown = {each.info.deployment: each.info.role for each in registry.snapshot().workers}
    assert shown == {"mine": PREFILL, "pool": DECODE, "all": BOTH, "": PREFILL, "gone": DECODE}
    registry.set_deployments([wish("mine", DECODE)])
    (mine,) = (each for each in registry.snapshot().workers if each.info.deployment == "mine")
    assert worker_record(mine)["role"] == "decode"

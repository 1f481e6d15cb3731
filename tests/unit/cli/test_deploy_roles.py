"""What a deployment's role says to people: whose other part is missing."""

import pytest

from polyfleet.cli.commands.deploy import changed, lacks_partner
from polyfleet.cli.commands.fleet import role_name
from polyfleet.scheduler.deployments.validate import check_deployment
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

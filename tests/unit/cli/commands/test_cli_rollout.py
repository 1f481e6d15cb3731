"""`polyfleet deployments | rollout`, and what `deploy` says of revisions, against a fleet that keeps them."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from click.testing import CliRunner, Result

from polyfleet.cli.main import cli
from polyfleet.scheduler.revisions import RolloutError, deployed, taken_back, undone
from polyfleet.v1 import fleet_pb2 as pb
from polyfleet.v1.fleet_pb2_grpc import FleetServicer, add_FleetServicer_to_server
from polyfleet.wire.limits import FieldError


class Fleet(FleetServicer):  # type: ignore[misc]
    """One deployment, of which every revision is stable at once."""

    def __init__(self) -> None:
        self.wish: pb.ModelDeployment | None = None

    def ListWorkers(self, request: Any, context: Any) -> pb.FleetSnapshot:
        found = [self.wish] if self.wish else []
        workers = [
            pb.FleetWorker(
                info=pb.WorkerInfo(worker_id=f"w-{number}", deployment="small", revision=number),
                status=pb.WorkerStatus(state=pb.WORKER_STATE_READY),
            )
            for number in (1, 1, 2)
        ]
        return pb.FleetSnapshot(deployments=found, workers=workers)

    def Deploy(self, request: Any, context: Any) -> pb.DeployResponse:
        try:
            wish = deployed(self.wish, request.deployment, 1_700_000_000)
        except FieldError as error:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"{error}.")
            raise
        if not wish.traffic:
            wish.stable_revision = wish.revision
        self.wish = wish
        return pb.DeployResponse(deployment=wish)

    def UndoRollout(self, request: Any, context: Any) -> pb.UndoRolloutResponse:
        try:
            self.wish = undone(self.wish or pb.ModelDeployment(), request.revision)
        except RolloutError as error:
            context.abort(error.code, str(error))
        return pb.UndoRolloutResponse(deployment=self.wish)


@pytest.fixture
def fleet() -> Iterator[tuple[Fleet, str]]:
    service, server = Fleet(), grpc.server(ThreadPoolExecutor(2))
    add_FleetServicer_to_server(service, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield service, f"127.0.0.1:{port}"
    server.stop(0).wait()


def run(address: str, *arguments: str) -> Result:
    return CliRunner().invoke(cli, (*arguments, "--fleet", address))


def shares(wish: pb.ModelDeployment | None) -> dict[int, int]:
    return {each.revision: each.percent for each in wish.traffic} if wish else {}


def test_a_canary_is_shared_out_promoted_and_undone(fleet: tuple[Fleet, str]) -> None:
    service, address = fleet
    refused = run(address, "deploy", "small", "/one.gguf", "--canary", "10")
    assert (refused.exit_code, "no deployment 'small' yet" in refused.stderr) == (2, True)
    assert run(address, "deploy", "small", "/one.gguf", "--workers", "4", "--threads", "2").exit_code == 0
    assert run(address, "deploy", "small", "/two.gguf", "--canary", "10").exit_code == 0
    assert service.wish is not None
    assert (service.wish.revision, service.wish.workers, service.wish.options.threads) == (2, 4, 2)
    assert shares(service.wish) == {2: 10, 1: 90}
    told = run(address, "rollout", "traffic", "small", "2=50%", "1=50").stdout
    assert told == "small: shared out: revision 2 has 50 %, revision 1 has 50 %.\n"
    assert run(address, "rollout", "traffic", "small", "2=100").stdout == "small: revision 2.\n"
    told = run(address, "rollout", "undo", "small").stdout
    assert told == "small goes back to revision 1: /one.gguf\n"
    refused = run(address, "rollout", "undo", "small")
    assert "no revision before 1 to go back to" in refused.stderr
    assert run(address, "rollout", "undo", "small", "--to-revision", "2").exit_code == 0


@pytest.mark.parametrize("shares", ["2", "2=", "=5", "two=5", "2=-5", "0=5", "2=101", "²=5", "2=5=5", "4294967296=1"])
def test_a_share_that_is_none_is_refused(fleet: tuple[Fleet, str], shares: str) -> None:
    _, address = fleet
    refused = run(address, "rollout", "traffic", "small", shares)
    assert (refused.exit_code, "A share must" in refused.stderr) == (2, True)


def test_shares_that_do_not_add_up_are_refused_by_the_fleet(fleet: tuple[Fleet, str]) -> None:
    _, address = fleet
    run(address, "deploy", "small", "/one.gguf")
    refused = run(address, "rollout", "traffic", "small", "1=90")
    assert (refused.exit_code, "add up to 100 percent, not 90" in refused.stderr) == (2, True)


def test_status_and_deployments_for_people_and_programs(fleet: tuple[Fleet, str]) -> None:
    service, address = fleet
    assert "No deployments." in run(address, "deployments").stdout
    run(address, "deploy", "small", "/one.gguf", "--workers", "2", "--max-surge", "2", "--progress-seconds", "30")
    run(address, "deploy", "small", "/two.gguf")
    assert service.wish is not None
    assert (service.wish.rollout.max_surge, service.wish.rollout.progress_seconds) == (2, 30)
    service.wish = taken_back(service.wish, 1, "It is bad.")
    status = json.loads(run(address, "rollout", "status", "small", "--json").stdout)
    assert [(each["revision"], each["ready_workers"], each["percent"]) for each in status["revisions"]] == [
        (2, 1, 0),
        (1, 2, 100),
    ]
    text = run(address, "rollout", "status", "small").stdout
    assert "Revision 2 was taken back, and revision 1 serves: It is bad." in text
    (record,) = json.loads(run(address, "deployments", "--json").stdout)
    assert (record["ready_workers"], record["workers"], record["revision"]) == (3, 2, 1)
    assert "3 of 2" in run(address, "deployments").stdout
    missing = run(address, "rollout", "status", "smal")
    assert (missing.exit_code, "There is no deployment 'smal'" in missing.stderr) == (2, True)


def test_a_number_that_follows_the_load_until_one_is_given(fleet: tuple[Fleet, str]) -> None:
    service, address = fleet
    unbounded = run(address, "deploy", "small", "/one.gguf", "--min-workers", "0")
    assert (unbounded.exit_code, "Say --max-workers" in unbounded.stderr) == (2, True)
    both = run(address, "deploy", "small", "/one.gguf", "--workers", "2", "--max-workers", "3")
    assert (both.exit_code, "leave out --max-workers" in both.stderr) == (2, True)
    run(address, "deploy", "small", "/one.gguf", "--max-workers", "3", "--kv-use", "0.5")
    run(address, "deploy", "small", "--min-workers", "0", "--idle-seconds", "60")
    assert service.wish is not None
    assert service.wish.autoscaling == pb.Autoscaling(max_workers=3, kv_use=0.5, idle_seconds=60)
    assert (service.wish.workers, service.wish.revision) == (1, 1)
    assert "3 of 1 (0 to 3)" in run(address, "deployments").stdout
    told = run(address, "scale", "small", "2").stdout
    assert told.endswith("1 before. Their number does not follow what they have to do any more.\n")
    assert (service.wish.workers, service.wish.HasField("autoscaling")) == (2, False)

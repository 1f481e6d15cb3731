"""The operators' commands against a fleet service that remembers what it was told."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from click.testing import CliRunner, Result

from polyfleet.cli.main import cli
from polyfleet.cli.stack.settings import bundled_model
from polyfleet.tuning.choice import choice_file, write_choice
from polyfleet.v1 import fleet_pb2 as pb
from polyfleet.v1.fleet_pb2_grpc import FleetServicer, add_FleetServicer_to_server


class Fleet(FleetServicer):  # type: ignore[misc]
    """Answers every call and keeps the requests."""

    def __init__(self) -> None:
        self.requests: list[Any] = []
        self.tokens: list[Any] = []
        self.workers: list[pb.FleetWorker] = []
        self.deployments: list[pb.ModelDeployment] = []
        self.pools: list[pb.ModelDeployment] = []
        self.wants_token = False

    def _note(self, request: Any, context: Any) -> None:
        self.requests.append(request)
        self.tokens.append(dict(context.invocation_metadata()).get("authorization"))
        if self.wants_token and not self.tokens[-1]:
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "Send `authorization: Bearer <fleet token>`.")

    def ListWorkers(self, request: Any, context: Any) -> pb.FleetSnapshot:
        self._note(request, context)
        return pb.FleetSnapshot(workers=self.workers, deployments=self.deployments, pools=self.pools)

    def Deploy(self, request: Any, context: Any) -> pb.DeployResponse:
        self._note(request, context)
        return pb.DeployResponse(deployment=request.deployment)

    def Undeploy(self, request: Any, context: Any) -> pb.UndeployResponse:
        self._note(request, context)
        if request.name == "absent":
            context.abort(grpc.StatusCode.NOT_FOUND, "There is no deployment 'absent'; there are: small.")
        return pb.UndeployResponse()

    def Drain(self, request: Any, context: Any) -> pb.DrainResponse:
        self._note(request, context)
        return pb.DrainResponse()

    def Usage(self, request: Any, context: Any) -> pb.UsageResponse:
        self._note(request, context)
        answer = pb.UsageResponse()
        for tenant in ("a", "b, c"):
            answer.rows.add(
                day="2026-11-28", tenant=tenant, model="m", requests=2, prompt_tokens=30, completion_tokens=5
            )
        return answer


@pytest.fixture
def fleet() -> Iterator[tuple[Fleet, str]]:
    service = Fleet()
    server = grpc.server(ThreadPoolExecutor(2))
    add_FleetServicer_to_server(service, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield service, f"127.0.0.1:{port}"
    server.stop(0).wait()


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments)


def loading_worker() -> pb.FleetWorker:
    info = pb.WorkerInfo(worker_id="w-1", deployment="small", accelerator="cpu", device_name="EPYC", host="h", pid=7)
    status = pb.WorkerStatus(state=pb.WORKER_STATE_LOADING, load_progress=0.5, running_sequences=3)
    return pb.FleetWorker(info=info, status=status)


def test_workers_that_get_no_new_requests_say_why(fleet: tuple[Fleet, str]) -> None:
    service, address = fleet
    for worker_id, fingerprint in (("w-1", "a"), ("w-2", "a"), ("w-3", "b")):
        info = pb.WorkerInfo(worker_id=worker_id, model=pb.ModelInfo(name="m", fingerprint=fingerprint))
        service.workers.append(pb.FleetWorker(info=info, status=pb.WorkerStatus(state=pb.WORKER_STATE_READY)))
    service.workers[2].status.reason = "canary: no reference"
    service.workers[1].quarantine = "free blocks: 9 of 8"
    records = json.loads(run("workers", "--fleet", address, "--json").stdout)
    assert [record["fingerprint"] for record in records] == ["a", "a", "b"]
    assert records[0]["reason"] == ""
    assert records[1]["reason"] == "no new requests: its last report can't be true (free blocks: 9 of 8)."
    assert records[2]["reason"] == (
        "no new requests: its weights or tokenizer are not those of most ready workers of its model. "
        "canary: no reference"
    )


def test_workers_for_people_and_programs(fleet: tuple[Fleet, str]) -> None:
    service, address = fleet
    assert "No workers." in run("workers", "--fleet", address).stdout
    service.workers = [loading_worker()]
    table = run("workers", "--fleet", address).stdout
    assert (
        table.splitlines()[1].split(maxsplit=1)[1]
        == "small       both  loading 50%  3 running, 0 waiting  cpu EPYC  h     7"
    )
    (record,) = json.loads(run("workers", "--fleet", address, "--json").stdout)
    assert (record["state"], record["load_progress"], record["running_sequences"]) == ("loading", 0.5, 3)


def test_what_deployments_and_pools_lack_is_said(fleet: tuple[Fleet, str]) -> None:
    service, address = fleet
    service.deployments = [pb.ModelDeployment(name="small", problem="No node of the cluster has cuda.")]
    service.pools = [pb.ModelDeployment(name="fine"), pb.ModelDeployment(name="cpu", problem="Pool cpu loses workers.")]
    lines = run("workers", "--fleet", address).stdout.splitlines()
    assert lines == ["small: No node of the cluster has cuda.", "Pool cpu loses workers."]
    assert json.loads(run("workers", "--fleet", address, "--json").stdout) == []


def test_an_unhealthy_worker_says_why(fleet: tuple[Fleet, str]) -> None:
    service, address = fleet
    status = pb.WorkerStatus(state=pb.WORKER_STATE_UNHEALTHY, reason="The file is truncated.")
    service.workers = [pb.FleetWorker(info=pb.WorkerInfo(worker_id="w-1"), status=status)]
    assert "unhealthy: The file is truncated." in run("workers", "--fleet", address).stdout


def test_a_worker_of_a_newer_version_is_listed_beside_the_others(fleet: tuple[Fleet, str]) -> None:
    service, address = fleet
    newer = pb.FleetWorker(
        info=pb.WorkerInfo(worker_id="w-2"),
        status=pb.WorkerStatus(state=99, reason="warming up"),  # type: ignore[arg-type]
    )
    service.workers = [loading_worker(), newer]
    assert "unknown: warming up" in run("workers", "--fleet", address).stdout
    records = json.loads(run("workers", "--fleet", address, "--json").stdout)
    assert [record["state"] for record in records] == ["loading", "unknown"]


def test_deploy_refuses_what_is_no_model_where_its_workers_see_this_machine(
    fleet: tuple[Fleet, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service, address = fleet
    (tmp_path / "notes.gguf").write_text("no model")
    arguments = ("deploy", "notes", str(tmp_path / "notes.gguf"), "--fleet", address)
    assert run(*arguments).exit_code == 0  # it may be another on the worker's host
    monkeypatch.setattr("polyfleet.cli.state_folder.known_token", lambda fleet: tmp_path / "token")
    refused = run(*arguments)
    assert refused.exit_code == 2
    assert "notes.gguf: is not a GGUF file" in refused.stderr
    assert sum(isinstance(each, pb.DeployRequest) for each in service.requests) == 1


def test_deploy_refuses_a_context_beyond_the_models_own(
    fleet: tuple[Fleet, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a deployment that is there, too: else its workers would have to come up to say so."""
    service, address = fleet
    service.deployments = [pb.ModelDeployment(name="small", source=str(bundled_model()), workers=1)]
    monkeypatch.setattr("polyfleet.cli.state_folder.known_token", lambda fleet: Path("token"))
    for arguments in (("other", str(bundled_model())), ("small",)):
        refused = run("deploy", *arguments, "--context-length", "8193", "--fleet", address)
        assert refused.exit_code == 2
        said = "its context has 8192 tokens, which context_length can't exceed: 8193 were asked for."
        assert refused.stderr.rstrip().endswith(said)
    assert not any(isinstance(each, pb.DeployRequest) for each in service.requests)


def test_deploy_to_ones_own_fleet_starts_from_ones_choice_and_says_so(
    fleet: tuple[Fleet, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service, address = fleet
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("POLYFLEET_BACKEND", raising=False)
    write_choice(choice_file(), {"backend": "cpu", "threads": 2, "max_sequences": 5})
    arguments = ("deploy", "small", str(bundled_model()), "--max-sequences", "3", "--fleet", address)
    for own, accelerators, options in (
        (None, [], pb.WorkerOptions(dtype="auto", max_sequences=3)),
        (tmp_path / "token", ["cpu"], pb.WorkerOptions(dtype="auto", max_sequences=3, threads=2)),
    ):
        monkeypatch.setattr("polyfleet.cli.state_folder.known_token", lambda fleet, own=own: own)
        done = run(*arguments)
        assert done.exit_code == 0
        assert ("From your choice (`polyfleet config show`): --threads 2." in done.stderr) == bool(own)
        wanted = service.requests[-1].deployment
        assert (list(wanted.accelerators), wanted.options) == (accelerators, options)


def test_deploy_sends_every_option(fleet: tuple[Fleet, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    service, address = fleet
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.gguf").touch()
    arguments = ["--workers", "2", "--model-name", "M", "--accelerator", "cuda", "--accelerator", "cpu"]
    arguments += ["--dtype", "float32", "--context-length", "64", "--kv-cache-tokens", "128", "--max-sequences", "3"]
    arguments += ["--step-tokens", "32", "--threads", "1", "--reproducible", "true"]
    done = run("deploy", "small", "m.gguf", "--fleet", address, *arguments)
    assert done.exit_code == 0
    options = pb.WorkerOptions(
        dtype="float32",
        context_length=64,
        kv_cache_tokens=128,
        max_sequences=3,
        step_tokens=32,
        threads=1,
        reproducible=True,
    )
    assert service.requests[-1].deployment == pb.ModelDeployment(
        name="small",
        model_name="M",
        source=str(tmp_path / "m.gguf"),
        accelerators=["cuda", "cpu"],
        workers=2,
        options=options,
    )


def test_deploy_keeps_a_path_of_another_host(fleet: tuple[Fleet, str]) -> None:
    service, address = fleet
    run("deploy", "small", "/models/only/there.gguf", "--fleet", address, "--json")
    assert service.requests[-1].deployment.source == "/models/only/there.gguf"
    assert service.requests[-1].deployment.workers == 1


def test_deploy_changes_what_is_there(fleet: tuple[Fleet, str]) -> None:
    service, address = fleet
    options = pb.WorkerOptions(dtype="auto", threads=2)
    service.deployments = [pb.ModelDeployment(name="small", source="/m.gguf", workers=1, options=options)]
    assert run("deploy", "small", "--workers", "3", "--fleet", address).exit_code == 0
    wanted = service.requests[-1].deployment
    assert (wanted.source, wanted.workers, wanted.options) == ("/m.gguf", 3, options)
    run("deploy", "small", "--accelerator", "cpu", "--threads", "1", "--fleet", address)
    wanted = service.requests[-1].deployment
    assert (wanted.workers, list(wanted.accelerators), wanted.options.threads) == (1, ["cpu"], 1)


def test_scale_changes_the_number_alone(fleet: tuple[Fleet, str]) -> None:
    service, address = fleet
    deployed = pb.ModelDeployment(name="small", source="/m.gguf", workers=1, accelerators=["cuda"])
    service.deployments = [deployed]
    done = run("scale", "small", "0", "--fleet", address)
    assert (done.exit_code, done.stdout) == (0, "small: 0 worker(s) wanted, 1 before.\n")
    wanted = service.requests[-1].deployment
    assert (wanted.source, wanted.workers, list(wanted.accelerators)) == ("/m.gguf", 0, ["cuda"])
    assert run("scale", "smal", "2", "--fleet", address).exit_code == 2
    assert run("scale", "small", "-1", "--fleet", address).exit_code == 2


def test_deploy_without_a_source_needs_a_known_name(fleet: tuple[Fleet, str]) -> None:
    service, address = fleet
    service.deployments = [pb.ModelDeployment(name="small")]
    refused = run("deploy", "smal", "--workers", "3", "--fleet", address)
    assert refused.exit_code == 2
    assert "no deployment 'smal'; there are: small. `deploy` with its SOURCE makes one." in refused.stderr


def test_undeploy_and_drain(fleet: tuple[Fleet, str]) -> None:
    service, address = fleet
    assert run("undeploy", "small", "--fleet", address).exit_code == 0
    assert run("drain", "w-1", "--fleet", address).exit_code == 0
    assert [type(request).__name__ for request in service.requests] == ["UndeployRequest", "DrainRequest"]
    refused = run("undeploy", "absent", "--fleet", address)
    assert (refused.exit_code, refused.stderr) == (2, "Error: There is no deployment 'absent'; there are: small.\n")


def test_the_fleet_token_is_presented(fleet: tuple[Fleet, str], tmp_path: Path) -> None:
    service, address = fleet
    (tmp_path / "token").write_text("t0ken\n")
    run("workers", "--fleet", address, "--fleet-token-file", str(tmp_path / "token"))
    assert service.tokens == ["Bearer t0ken"]


def test_a_refusal_names_the_option_that_takes_the_token(fleet: tuple[Fleet, str]) -> None:
    service, address = fleet
    service.wants_token = True
    refused = run("workers", "--fleet", address)
    said = "Error: Send `authorization: Bearer <fleet token>`; --fleet-token-file names the file that has it.\n"
    assert (refused.exit_code, refused.stderr) == (4, said)


def test_usage_is_summed_as_asked(fleet: tuple[Fleet, str]) -> None:
    service, address = fleet
    done = run("usage", "--fleet", address, "--json", "--by", "tenant", "--since", "2026-11-01", "--tenant", "a")
    assert [(each["tenant"], each["prompt_tokens"]) for each in json.loads(done.stdout)] == [("a", 30), ("b, c", 30)]
    assert (service.requests[-1].first_day, service.requests[-1].tenant) == ("2026-11-01", "a")
    assert json.loads(run("usage", "--fleet", address, "--json", "--by", "model").stdout)[0]["requests"] == 4
    rows = run("usage", "--fleet", address, "--csv").stdout.splitlines()
    assert rows[0] == "day,tenant,model,requests,prompt_tokens,cached_tokens,completion_tokens"
    assert rows[2] == '2026-11-28,"b, c",m,2,30,0,5'
    assert "COMPLETION TOKENS" in run("usage", "--fleet", address).stdout
    refused = run("usage", "--fleet", address, "--by", "hour")
    assert (refused.exit_code, "--by takes some of day, tenant, model, not 'hour'." in refused.stderr) == (2, True)

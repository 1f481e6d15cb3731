"""What `polyfleet serve` decides before it starts anything."""

import dataclasses
import shlex
import socket
import sys
from pathlib import Path

import msgspec
import pytest

from polyfleet.cli import hints
from polyfleet.cli.errors import CliError, ExitCode
from polyfleet.cli.settings import (
    MODEL_FILE,
    MODEL_NAME,
    Flags,
    bundled_model,
    check_ports,
    dialable,
    resolve,
)
from polyfleet.cli.stack import Stack

FILE = """
gateway: {grpc_listen: "127.0.0.1:7000", http_listen: "127.0.0.1:7001"}
scheduler: {listen: "0.0.0.0:7002", fleet_token_file: /etc/token}
deployments: [{name: big, source: /models/big, workers: 3}]
"""


def config_file(folder: Path) -> Path:
    path = folder / "polyfleet.yaml"
    path.write_text(FILE)
    return path


def test_defaults_serve_the_bundled_model() -> None:
    settings = resolve(Flags())
    (deployment,) = settings.config.deployments
    assert (deployment.name, deployment.model_name, deployment.workers) == (MODEL_NAME, MODEL_NAME, 1)
    assert Path(deployment.source).name == MODEL_FILE
    assert list(settings.listeners.values()) == [
        "127.0.0.1:50051",
        "127.0.0.1:8000",
        "127.0.0.1:9101",
        "127.0.0.1:50052",
        "127.0.0.1:9102",
    ]


def test_the_file_names_addresses_and_deployments(tmp_path: Path) -> None:
    settings = resolve(Flags(config=config_file(tmp_path)))
    assert settings.grpc_address == "127.0.0.1:7000"
    assert settings.config.gateway.fleet == "127.0.0.1:7002"
    assert [(d.name, d.workers) for d in settings.config.deployments] == [("big", 3)]


def test_flags_override_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "My Model.gguf").touch()
    monkeypatch.chdir(tmp_path)
    flags = Flags(
        config=config_file(tmp_path),
        model="My Model.gguf",
        workers=2,
        grpc_listen="127.0.0.1:7100",
        fleet_listen="127.0.0.1:7102",
        state_dir=tmp_path / "state",
        generation_config="none",
    )
    settings = resolve(flags)
    assert settings.config.gateway.generation_config == "none"
    (deployment,) = settings.config.deployments
    assert (deployment.name, deployment.model_name, deployment.workers) == ("my-model", "My Model", 2)
    assert deployment.source == str(tmp_path / "My Model.gguf")
    assert (settings.grpc_address, settings.http_address) == ("127.0.0.1:7100", "127.0.0.1:7001")
    assert settings.config.gateway.fleet == "127.0.0.1:7102"
    assert settings.state_dir == tmp_path / "state"
    assert settings.config.scheduler.fleet_token_file == "/etc/token"


def test_the_gateway_is_told_whose_sampling_defaults_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("POLYFLEET_FLEET_TOKEN_FILE", raising=False)
    for chosen in ("auto", "none"):
        command = Stack(resolve(Flags(generation_config=chosen)))._gateway_command()
        assert command[command.index("--generation-config") + 1] == chosen


def test_keys_of_the_gateway_hold_at_the_scheduler(tmp_path: Path) -> None:
    path = tmp_path / "polyfleet.yaml"
    path.write_text("gateway: {keys_file: /etc/keys.yaml}")
    assert resolve(Flags(config=path)).config.scheduler.keys_file == "/etc/keys.yaml"
    path.write_text("gateway: {keys_file: /etc/keys.yaml}\nscheduler: {keys_file: /etc/ops.yaml}")
    assert resolve(Flags(config=path)).config.scheduler.keys_file == "/etc/ops.yaml"


def test_flags_of_the_model_need_a_model_when_the_file_has_its_own(tmp_path: Path) -> None:
    with pytest.raises(CliError, match="--workers and --model-name belong to --model"):
        resolve(Flags(config=config_file(tmp_path), workers=2))


def test_a_model_that_is_not_there_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(CliError, match=r"--model .*/none\.gguf: there is no such file or folder\.") as refusal:
        resolve(Flags(model=str(tmp_path / "none.gguf")))
    assert refusal.value.exit_code == ExitCode.BAD_INPUT


def test_a_bad_address_is_refused() -> None:
    with pytest.raises(CliError, match="'50051' is no address"):
        resolve(Flags(grpc_listen="50051"))


def test_an_absent_model_package_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(CliError, match="The default model is not installed") as caught:
        bundled_model()
    assert caught.value.exit_code == ExitCode.BAD_INPUT


def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, socket.create_server(("127.0.0.1", 0)) as released:
        address, free = (f"127.0.0.1:{each.getsockname()[1]}" for each in (taken, released))
        released.close()
        with pytest.raises(CliError, match=f"{address}, wanted for HTTP, can't be had: Address already in use"):
            check_ports(resolve(Flags(http_listen=address, grpc_listen=free)))


def test_one_port_for_two_is_refused() -> None:
    with pytest.raises(CliError, match="gRPC and HTTP can't both listen on"):
        check_ports(resolve(Flags(grpc_listen="127.0.0.1:7003", http_listen="127.0.0.1:7003")))


@pytest.mark.parametrize(
    ("listen", "dial"),
    [("0.0.0.0:1", "127.0.0.1:1"), ("[::]:1", "127.0.0.1:1"), ("127.0.0.1:1", "127.0.0.1:1"), ("host:1", "host:1")],
)
def test_dialable(listen: str, dial: str) -> None:
    assert dialable(listen) == dial


def test_hints_name_the_addresses_and_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "m.gguf").touch()
    monkeypatch.chdir(tmp_path)
    here = Path(sys.executable).parent
    monkeypatch.setenv("PATH", str(here))
    settings = resolve(Flags(grpc_listen="127.0.0.1:7100", http_listen="127.0.0.1:7101", model="m.gguf"))
    calls = hints.calls(settings)
    assert calls["Shell"] == "polyfleet chat --gateway 127.0.0.1:7100"
    monkeypatch.setenv("PATH", "")
    assert hints.calls(settings)["Shell"] == f"{shlex.quote(str(here / 'polyfleet'))} chat --gateway 127.0.0.1:7100"
    assert "http://127.0.0.1:7101/v1/chat/completions" in calls["curl"]
    assert '"model": "m"' in calls["curl"]
    said = hints.endpoints(resolve(Flags(gateway_metrics_listen="127.0.0.1:7102", metrics_listen="127.0.0.1:7103")))
    assert "http://127.0.0.1:7102/metrics" in said
    assert "http://127.0.0.1:7103/metrics" in said
    compile(calls[f"Python ({sys.executable})"], "hint", "exec")
    assert "127.0.0.1:7101" in hints.endpoints(settings)


def test_calls_to_copy_speak_tls_and_name_keys_where_they_are_asked_for() -> None:
    settings = resolve(Flags())
    gateway = msgspec.structs.replace(settings.config.gateway, keys_file="k", tls_cert="c", tls_key="k")
    secured = dataclasses.replace(settings, config=msgspec.structs.replace(settings.config, gateway=gateway))
    shell, curl, python = hints.calls(secured).values()
    assert shell.endswith(" --api-key-file KEY_FILE --ca-file CA_FILE")
    assert "https://127.0.0.1:8000/v1/chat/completions -H 'Authorization: Bearer KEY' --cacert CA_FILE" in curl
    assert 'Client("127.0.0.1:50051", api_key="KEY", tls=Tls(ca_file="CA_FILE"))' in python
    assert "https://127.0.0.1:8000/v1" in hints.endpoints(secured)
    assert "https" not in "".join((hints.endpoints(settings), *hints.calls(settings).values()))

"""What `polyfleet serve` decides before it starts anything."""

import dataclasses
import itertools
import shlex
import socket
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from polyfleet.cli.errors import CliError, ExitCode
from polyfleet.cli.main import cli
from polyfleet.cli.stack import hints
from polyfleet.cli.stack.gateway import gateway_command
from polyfleet.cli.stack.settings import (
    MODEL_FILE,
    MODEL_NAME,
    Flags,
    ServeSettings,
    bundled_model,
    check_models,
    check_ports,
    dialable,
    resolve,
)

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
        command = gateway_command(resolve(Flags(generation_config=chosen)))
        assert command[command.index("--generation-config") + 1] == chosen


def test_the_model_goes_where_its_flags_say(tmp_path: Path) -> None:
    (deployment,) = resolve(Flags(accelerators=("sample", "cpu"))).config.deployments
    assert deployment.accelerators == ("sample", "cpu")
    with pytest.raises(CliError, match="--accelerator belongs to --model"):
        resolve(Flags(config=config_file(tmp_path), accelerators=("cpu",)))
    for wrong in ("CUDA", "cuda:1", "auto", ""):
        assert CliRunner().invoke(cli, ["serve", "--accelerator", wrong]).exit_code == ExitCode.BAD_INPUT


def test_the_gateway_is_told_how_workers_are_chosen(tmp_path: Path) -> None:
    path = tmp_path / "polyfleet.yaml"
    path.write_text("gateway: {placement: {tie_seconds: 0.5, tie_ratio: 0.3}}\n")
    command = gateway_command(resolve(Flags(config=path, placement=("tie_seconds=0.25",))))
    told = [value for name, value in itertools.pairwise(command) if name == "--placement"]
    assert {"tie_seconds=0.25", "tie_ratio=0.3", "remaining_tokens=128.0"} < set(told)
    wrong = CliRunner().invoke(cli, ["serve", "--placement", "ties=1"])
    assert (wrong.exit_code, "There is no `ties`" in wrong.output) == (ExitCode.BAD_INPUT, True)


def test_keys_of_the_gateway_hold_at_the_scheduler(tmp_path: Path) -> None:
    path = tmp_path / "polyfleet.yaml"
    path.write_text("gateway: {keys_file: /etc/keys.yaml}")
    assert resolve(Flags(config=path)).config.scheduler.keys_file == "/etc/keys.yaml"
    path.write_text("gateway: {keys_file: /etc/keys.yaml}\nscheduler: {keys_file: /etc/ops.yaml}")
    assert resolve(Flags(config=path)).config.scheduler.keys_file == "/etc/ops.yaml"


def test_flags_of_the_model_need_a_model_when_the_file_has_its_own(tmp_path: Path) -> None:
    with pytest.raises(CliError, match="--workers belongs to --model"):
        resolve(Flags(config=config_file(tmp_path), workers=2))


def test_a_model_that_is_not_there_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(CliError, match=r"The model .*/none\.gguf: there is no such file or folder\.") as refusal:
        check_models(resolve(Flags(model=str(tmp_path / "none.gguf"))))
    assert refusal.value.exit_code == ExitCode.BAD_INPUT
    with pytest.raises(CliError, match=r"The model /models/big: there is no such file or folder\."):
        check_models(resolve(Flags(config=config_file(tmp_path))))
    check_models(resolve(Flags()))


def test_a_file_that_is_no_model_is_refused_without_torch(tmp_path: Path) -> None:
    (tmp_path / "notes.gguf").write_text("no model at all")
    script = f"""
import sys
from polyfleet.cli.main import cli
try:
    cli.main(["serve", "--model", {str(tmp_path / "notes.gguf")!r}], standalone_mode=False)
except Exception as error:
    assert not {{"torch", "ray"}} & set(sys.modules)
    sys.exit(str(error))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=200, check=False)
    assert "notes.gguf: is not a GGUF file" in done.stderr
    assert done.returncode == 1


@pytest.mark.parametrize("option", ["--model", "--model-name", "--state-dir", "--config"])
def test_an_empty_value_is_no_wish_for_the_default(option: str) -> None:
    done = CliRunner().invoke(cli, ["serve", option, ""])
    assert done.exit_code == ExitCode.BAD_INPUT
    assert "it is empty; leave the option out" in done.stderr


@pytest.mark.parametrize("address", ["50051", "h:0", "h:65536", "h:²", "h:" + "9" * 9999])
def test_a_bad_address_is_refused(address: str) -> None:
    with pytest.raises(CliError, match=f"'{address}' is no address"):
        resolve(Flags(grpc_listen=address))


def test_an_absent_model_package_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(CliError, match="The default model is not installed") as caught:
        bundled_model()
    assert caught.value.exit_code == ExitCode.BAD_INPUT


def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, socket.create_server(("127.0.0.1", 0)) as released:
        address, free = (f"127.0.0.1:{each.getsockname()[1]}" for each in (taken, released))
        released.close()
        with pytest.raises(CliError, match=f"{address} is in use: free it, or .* with --http-listen"):
            check_ports(resolve(Flags(http_listen=address, grpc_listen=free)))


def test_one_port_for_two_is_refused() -> None:
    with pytest.raises(CliError, match="--grpc-listen and --http-listen can't both be 127"):
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
    assert calls["Shell"] == "polyfleet chat --gateway 127.0.0.1:7100 --model m"
    monkeypatch.setenv("PATH", "")
    path = shlex.quote(str(here / "polyfleet"))
    assert hints.calls(settings)["Shell"] == f"{path} chat --gateway 127.0.0.1:7100 --model m"
    monkeypatch.chdir(here.parents[1])
    assert hints.calls(settings)["Shell"].startswith(f"{Path(*here.parts[-2:]) / 'polyfleet'} chat")
    assert f"`{Path(*here.parts[-2:]) / 'polyfleet'} workers`" in hints.endpoints(settings)
    monkeypatch.chdir(tmp_path)
    assert "http://127.0.0.1:7101/v1/chat/completions" in calls["curl"]
    assert '"model": "m"' in calls["curl"]
    said = hints.endpoints(resolve(Flags(gateway_metrics_listen="127.0.0.1:7102", metrics_listen="127.0.0.1:7103")))
    assert "http://127.0.0.1:7102/metrics" in said
    assert "http://127.0.0.1:7103/metrics" in said
    assert "polyfleet workers --fleet 127.0.0.1:7104`" in hints.endpoints(resolve(Flags(fleet_listen="127.0.0.1:7104")))
    python = calls[f"Python ({sys.executable})"]
    compile(python, "hint", "exec")
    assert "model='m'" in python
    assert "127.0.0.1:7101" in hints.endpoints(settings)


def secured_settings(**gateway: str) -> ServeSettings:
    settings = resolve(Flags())
    section = msgspec.structs.replace(settings.config.gateway, **gateway)
    return dataclasses.replace(settings, config=msgspec.structs.replace(settings.config, gateway=section))


def test_calls_to_copy_pass_the_key_and_the_roots_that_serve_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    secured = secured_settings(keys_file="k", tls_cert="c", tls_key="k")
    key, roots = Path("secrets/me.key"), Path("/etc/my roots.pem")
    shell, curl, python = hints.calls(secured, key, roots).values()
    assert shell.endswith(" --api-key-file secrets/me.key --ca-file '/etc/my roots.pem'")
    assert "https://127.0.0.1:8000/v1/chat/completions" in curl
    assert """ -H "Authorization: Bearer $(head -n 1 secrets/me.key)" --cacert '/etc/my roots.pem'""" in curl
    path = str(tmp_path / "secrets/me.key")
    assert f"api_key=open({path!r}).readline().strip(), tls=Tls(ca_file='/etc/my roots.pem')" in python
    compile(python, "hint", "exec")
    said = hints.endpoints(secured)
    assert "polyfleet.v1.Inference, with TLS, with a key" in said
    assert "https://127.0.0.1:8000/v1" in said


def test_calls_to_copy_name_only_what_is_asked_for() -> None:
    plain = resolve(Flags())
    assert "https" not in "".join((hints.endpoints(plain), *hints.calls(plain).values()))
    assert "with" not in hints.endpoints(plain)
    shell, curl, python = hints.calls(secured_settings(tls_cert="c", tls_key="k")).values()
    assert shell.endswith(" --tls")
    assert "https://" in curl
    assert "cacert" not in curl
    assert python.splitlines()[1].endswith(", tls=True) as client:")

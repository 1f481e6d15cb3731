"""`polyfleet agent` before its worker runs, and the units that start it."""

import configparser
import plistlib
import shlex
import socket
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from polyfleet.cli.commands import agent as command
from polyfleet.engine import fitting
from polyfleet.serving.command import config_of
from polyfleet.serving.command import main as worker_command

DEPLOY = Path(__file__).parents[4] / "deploy"


def run(*arguments: str) -> Any:
    return CliRunner().invoke(command.agent, arguments)


def systemd_command() -> list[str]:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read(DEPLOY / "systemd" / "polyfleet-agent.service")
    assert unit["Service"]["Restart"] == "always"
    return shlex.split(
        unit["Service"]["ExecStart"].replace("${CREDENTIALS_DIRECTORY}/token", str(DEPLOY / "compose.yaml"))
    )


def launchd_command() -> list[str]:
    unit = plistlib.loads((DEPLOY / "launchd" / "polyfleet.agent.plist").read_bytes())
    assert unit["KeepAlive"]
    words: list[str] = unit["ProgramArguments"]
    return [str(DEPLOY / "compose.yaml") if each.endswith(".token") else each for each in words]


@pytest.mark.parametrize("words", [systemd_command(), launchd_command()], ids=["systemd", "launchd"])
def test_units_start_what_there_is(words: list[str]) -> None:
    assert words[1] == command.agent.name
    options = command.agent.make_context("agent", words[2:]).params
    assert options["join"] == "gateway.example.com:50051"
    assert options["tls"]


def test_it_does_not_start_where_memory_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitting, "site_here", lambda name: fitting.site_imagined(name, 1 << 20))
    result = run("--join", "127.0.0.1:1", "--accelerator", "cpu")
    assert result.exit_code == 3, result.output
    assert "does not fit cpu" in result.output
    assert "It would fit with" in result.output


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ([], "Missing option '--join'"),
        (["--join", "host"], "is no address"),
        (["--join", "host:1", "--model", "/nowhere.gguf"], "/nowhere.gguf"),
        (["--join", "host:1", "--token-file", "/nowhere"], "/nowhere"),
        (["--join", "host:1", "--accelerator", "abacus"], "abacus"),
        (["--join", "host:1", "--name", "Jane's Mac"], "'--name': \"Jane's Mac\" is not 1 to 128 of"),
        (["--join", "host:1", "--drain-timeout", "nan"], "'--drain-timeout': nan is no finite number"),
        (["--join", "127.0.0.1:1", "--metrics-listen", "x"], "Usage: agent [OPTIONS]"),
    ],
)
def test_what_it_can_not_take_is_named(arguments: list[str], problem: str) -> None:
    result = run(*arguments)
    assert result.exit_code in (2, 3)
    assert problem in result.output


def test_what_is_given_reaches_its_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = list[list[str]]()
    monkeypatch.setattr(command, "check_memory", lambda *_: None)
    monkeypatch.setattr(command, "run", seen.append)
    (token := tmp_path / "token").write_text("secret")
    arguments = ["--join", "host:1", "--token-file", str(token), "--name", "mac", "--deployment", "small", "--tls"]
    result = run(*arguments, "--context-length", "64", "--prefix-cache", "false", "--adapter", f"a={tmp_path}")
    assert result.exit_code in (None, 0), result.output
    config = config_of(worker_command.make_context("worker", seen[0]).params)
    assert config.join is not None
    assert (config.join.address, config.join.tls) == ("host:1", True)
    assert (config.worker_id, config.deployment, config.listen) == ("mac", "small", "127.0.0.1:0")
    assert config.load is not None
    assert (config.load.options.context_length, config.load.options.prefix_cache) == (64, False)
    assert [(each.name, each.source) for each in config.load.adapters] == [("a", str(tmp_path))]
    assert config.fleet_token_file == token


def test_a_hosts_name_becomes_an_id(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "Jane's Mac.local")
    assert command.host_name() == "Jane-s-Mac.local"

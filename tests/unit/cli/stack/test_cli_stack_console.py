"""The console of `polyfleet serve`: where it goes, what it is told, and that the rest serves on without it."""

import signal
import socket
import sys
import time
from pathlib import Path

import pytest
from tests.support.ports import free_address

from polyfleet.cli.errors import CliError
from polyfleet.cli.stack import console, hints
from polyfleet.cli.stack.console import StackConsole, console_command, first_free
from polyfleet.cli.stack.settings import Flags, ServeSettings, resolve
from polyfleet.console.config import ConsoleConfig, load_config
from polyfleet.process.config import ConfigError


def settings_of(tmp_path: Path, text: str = "{}", port: int | None = None) -> ServeSettings:
    (tmp_path / "polyfleet.yaml").write_text(text)
    return resolve(Flags(config=tmp_path / "polyfleet.yaml", console_port=port, state_dir=tmp_path))


def told(command: list[str]) -> dict[str, str]:
    assert command[:3] == [sys.executable, "-m", "polyfleet.console"]
    flags = [each for each in command[3:] if each != "--gateway-tls"]
    return dict(zip(flags[::2], flags[1::2], strict=True))


def test_a_taken_port_makes_way_for_the_next_free_one() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        found = int(first_free(f"127.0.0.1:{port}").rpartition(":")[2])
        assert port < found < port + console.TRIED_PORTS
    address = free_address()
    assert first_free(address) == address


def test_a_host_that_is_none_of_ours_is_refused_by_its_name() -> None:
    with pytest.raises(ConfigError, match=r"192\.0\.2\.1:8080 can't be listened on"):
        first_free("192.0.2.1:8080")


@pytest.mark.parametrize(
    ("text", "port", "wanted"),
    [
        ("{}", None, "127.0.0.1:8080"),
        ("{}", 9000, "127.0.0.1:9000"),
        ("{}", 0, None),
        ('{console: {listen: "0.0.0.0:81"}}', None, "0.0.0.0:81"),
        ('{console: {listen: "[::1]:81"}}', 82, "[::1]:82"),
        ('{console: {listen: "127.0.0.1:0"}}', None, None),
    ],
)
def test_port_0_means_no_console(tmp_path: Path, text: str, port: int | None, wanted: str | None) -> None:
    assert settings_of(tmp_path, text, port).console_listen == wanted


def test_an_address_that_is_none_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(CliError, match="nonsense"):
        settings_of(tmp_path, '{console: {listen: "nonsense"}}')


def test_it_has_the_gateways_keys_and_certificate_where_its_section_names_none(tmp_path: Path) -> None:
    gateway = 'grpc_listen: "0.0.0.0:7000", keys_file: k.yaml, tls_cert: c.pem, tls_key: k.pem'
    settings = settings_of(tmp_path, f"gateway: {{{gateway}}}").with_fleet_token(tmp_path / "token")
    command = console_command(settings, "127.0.0.1:8080", tmp_path / "roots.pem")
    flags = told(command)
    assert "--gateway-tls" in command
    assert (flags["--gateway"], flags["--fleet"]) == ("127.0.0.1:7000", "127.0.0.1:50052")
    assert (flags["--keys-file"], flags["--tls-cert"], flags["--tls-key"]) == ("k.yaml", "c.pem", "k.pem")
    assert (flags["--gateway-ca"], flags["--fleet-token-file"]) == (
        str(tmp_path / "roots.pem"),
        str(tmp_path / "token"),
    )
    own = settings_of(tmp_path, f"gateway: {{{gateway}}}\nconsole: {{keys_file: own.yaml, tls_cert: o, tls_key: o}}")
    flags = told(console_command(own, "127.0.0.1:8080", None))
    assert (flags["--keys-file"], flags.get("--tls-cert"), flags.get("--gateway-ca")) == ("own.yaml", None, None)


def test_what_it_is_told_is_what_it_takes(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, "console: {session_seconds: 600}").with_fleet_token(tmp_path / "token")
    flags = told(console_command(settings, "127.0.0.1:9999", None))
    names = {flag.removeprefix("--").replace("-", "_"): value for flag, value in flags.items() if flag != "--config"}
    found = load_config(Path(flags["--config"]), names)
    assert found == ConsoleConfig(
        listen="127.0.0.1:9999", session_seconds=600, fleet_token_file=str(tmp_path / "token")
    )


def test_one_that_can_not_start_is_said_and_nothing_else_ends(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    port = int(free_address().rpartition(":")[2])
    settings = settings_of(tmp_path, '{console: {listen: "0.0.0.0:1"}}', port)  # beyond loopback, and no keys
    made = StackConsole(settings, None)
    made.start()
    assert made.url == ""
    said = capfd.readouterr().err
    assert "The console ended with code 2" in said
    assert "keys" in made.log.read_text()
    made.check()
    made.stop()


def test_none_is_started_where_none_is_wanted(tmp_path: Path) -> None:
    made = StackConsole(settings_of(tmp_path, port=0), None)
    made.start()
    assert (made.url, made.log.exists()) == ("", False)
    assert "Console" not in hints.endpoints(settings_of(tmp_path), made.url)
    assert "Console  http://127.0.0.1:1 " in hints.endpoints(settings_of(tmp_path), "http://127.0.0.1:1")


def test_one_that_hangs_is_killed_and_started_again_at_its_address(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    port = int(free_address().rpartition(":")[2])
    made = StackConsole(settings_of(tmp_path, port=port), None)
    made.start()
    assert made.url == f"http://127.0.0.1:{port}"
    first = made._process
    assert first
    first.send_signal(signal.SIGSTOP)
    deadline = time.monotonic() + 60
    while made._process is first:
        assert time.monotonic() < deadline
        made.check()
        time.sleep(0.05)
    assert first.returncode == -signal.SIGKILL
    assert "The console hung and was killed; it is started again." in capfd.readouterr().err
    assert made.url == f"http://127.0.0.1:{port}"
    assert console.answers(f"127.0.0.1:{port}")
    made.stop()

"""The gateway of `polyfleet serve`, as a real process: replaced where it hangs or dies, not where it never came up."""

import signal
import subprocess
import time
from pathlib import Path
from urllib.request import urlopen

import pytest
from tests.support.ports import free_addresses

from polyfleet.cli.errors import CliError
from polyfleet.cli.stack.gateway import StackGateway
from polyfleet.cli.stack.settings import Flags, ServeSettings, resolve

PATIENCE_SECONDS = 60.0


def settings_of(tmp_path: Path) -> ServeSettings:
    grpc, http, fleet, metrics = free_addresses(4)
    text = f'grpc_listen: "{grpc}", http_listen: "{http}", fleet: "{fleet}", metrics_listen: "{metrics}"'
    (tmp_path / "polyfleet.yaml").write_text(f"gateway: {{{text}}}")
    return resolve(Flags(config=tmp_path / "polyfleet.yaml", state_dir=tmp_path))


def process_of(gateway: StackGateway) -> "subprocess.Popen[bytes]":
    assert gateway._process
    return gateway._process


def checked_until_it_serves(gateway: StackGateway, settings: ServeSettings) -> None:
    """Call `check` as `serve` does, until the present process has answered it."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not gateway._watch.answered:
        assert time.monotonic() < deadline
        gateway.check()
        time.sleep(0.05)
    assert urlopen(f"http://{settings.config.gateway.metrics_listen}/healthz", timeout=10).status == 200


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (signal.SIGSTOP, "The gateway hung and was killed; it is started again."),
        (signal.SIGKILL, "The gateway ended with code -9; it is started again."),
    ],
)
def test_one_that_hangs_or_dies_is_started_again(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], number: signal.Signals, said: str
) -> None:
    settings = settings_of(tmp_path)
    gateway = StackGateway(settings)
    gateway.start()
    try:
        checked_until_it_serves(gateway, settings)
        first = process_of(gateway)
        first.send_signal(number)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while process_of(gateway) is first:
            assert time.monotonic() < deadline
            gateway.check()
            time.sleep(0.05)
        assert first.returncode == -signal.SIGKILL
        assert said in " ".join(capfd.readouterr().err.split())
        checked_until_it_serves(gateway, settings)
    finally:
        gateway.hurry()
        gateway.stop()


def test_one_that_never_answered_ends_everything_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "polyfleet.yaml").write_text('gateway: {grpc_listen: "0.0.0.0:1"}')  # beyond loopback, and no keys
    gateway = StackGateway(resolve(Flags(config=tmp_path / "polyfleet.yaml", state_dir=tmp_path)))
    gateway.start()
    process_of(gateway).wait(PATIENCE_SECONDS)
    with pytest.raises(CliError, match=r"The gateway ended with code 2: .*gateway\.log says why"):
        gateway.check()
    gateway.stop()

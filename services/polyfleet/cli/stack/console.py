"""The console of `polyfleet serve`: a process beside the others, at the first free port from its own on."""

import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from polyfleet.cli.stack.processes import end, kill, spawn
from polyfleet.cli.stack.settings import ServeSettings, dialable
from polyfleet.cli.stack.watch import Watch
from polyfleet.cli.terminal.output import err
from polyfleet.process.config import ConfigError
from polyfleet.process.listening import MAX_PORT, check_free
from polyfleet.wire.auth import join_host_port, split_host_port

TRIED_PORTS = 100
PATIENCE_SECONDS = 30.0
POLL_SECONDS = 0.05
FLAG = "--console-port"


class StackConsole:
    """Fleet and gateway serve without it: what keeps it from running is said, and changes nothing else."""

    def __init__(self, settings: ServeSettings, ca_file: Path | None) -> None:
        self._settings, self._ca_file = settings, ca_file
        self._process: subprocess.Popen[bytes] | None = None
        self._address = ""
        self._watch = Watch()

    @property
    def log(self) -> Path:
        """What it says."""
        return self._settings.state_dir / "logs" / "console.log"

    @property
    def url(self) -> str:
        """Where a browser finds it; empty while it does not run."""
        if self._process is None:
            return ""
        secure = self._settings.config.console.tls_cert or self._settings.config.gateway.tls_cert
        return f"{'https' if secure else 'http'}://{dialable(self._address)}{self._settings.config.console.root_path}"

    def start(self) -> None:
        """Return once it listens, or has been given up; at once where the configuration wants none."""
        wanted = self._settings.console_listen
        if wanted is None:
            return
        try:
            self._address = first_free(wanted)
        except ConfigError as error:
            err.print(f"There is no console. {error}", style="yellow", markup=False)
            return
        if self._address != wanted:
            err.print(f"{wanted} is in use: the console is at {self._address}.", style="yellow", markup=False)
        self._process = spawn(console_command(self._settings, self._address, self._ca_file), self.log)
        self._watch = Watch(f"{self.url}/healthz" if self.url.startswith("http:") else "")
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self._process is not None and time.monotonic() < deadline and not answers(dialable(self._address)):
            time.sleep(POLL_SECONDS)
            self.check()

    def check(self) -> None:
        """Say so when it has ended, and start another one where it hangs; everything else serves on."""
        if self._process is None:
            return
        if (code := self._process.poll()) is not None:
            err.print(f"The console ended with code {code}: {self.log} says why.", style="yellow", markup=False)
            self._process = None
        elif self._watch.hangs(self._process.pid):
            err.print("The console hung and was killed; it is started again.", style="yellow")
            kill(self._process)
            self.start()

    def stop(self) -> None:
        """End it; nothing happens where it does not run."""
        if self._process is not None:
            end(self._process)
            self._process = None


def first_free(wanted: str) -> str:
    """`wanted`, or the same host at the next port that nothing listens on. Raises ConfigError."""
    host, port = split_host_port(wanted)
    ports = range(int(port), min(int(port) + TRIED_PORTS, MAX_PORT + 1))
    for address in (join_host_port(host, each) for each in ports):
        with suppress(ConfigError):
            check_free(address, FLAG)
            return address
    check_free(wanted, FLAG)
    return wanted


def answers(address: str) -> bool:
    """Whether something listens there."""
    host, port = split_host_port(address)
    with suppress(OSError), socket.create_connection((host, int(port)), timeout=1):
        return True
    return False


def console_command(settings: ServeSettings, address: str, ca_file: Path | None) -> list[str]:
    """Its command line: what its own section leaves out is as the gateway has it."""
    config, gateway = settings.config.console, settings.config.gateway
    command = [sys.executable, "-m", "polyfleet.console", "--listen", address]
    if settings.config_file:
        command += ["--config", str(settings.config_file)]
    command += ["--fleet", settings.fleet_address, "--gateway", settings.grpc_address]
    files = {"--keys-file": config.keys_file or gateway.keys_file}
    files["--fleet-token-file"] = config.fleet_token_file or str(settings.fleet_token_file or "")
    if not config.tls_cert:
        files |= {"--tls-cert": gateway.tls_cert, "--tls-key": gateway.tls_key}
    if gateway.tls_cert:
        command += ["--gateway-tls"]
        files["--gateway-ca"] = config.gateway_ca or str(ca_file.absolute() if ca_file else "")
    return command + [part for flag, file in files.items() if file for part in (flag, file)]

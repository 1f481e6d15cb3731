"""The gateway of `polyfleet serve`: one that hangs, or ends though it has served, makes way for another."""

import subprocess
import sys
from pathlib import Path

import msgspec

from polyfleet.cli.errors import CliError
from polyfleet.cli.stack.processes import end, kill, spawn
from polyfleet.cli.stack.settings import ServeSettings, dialable
from polyfleet.cli.stack.watch import Watch
from polyfleet.cli.terminal.output import err


class StackGateway:
    """Dials the scheduler for ever. May be stopped in any state."""

    def __init__(self, settings: ServeSettings) -> None:
        self._settings = settings
        self._process: subprocess.Popen[bytes] | None = None
        self._watch = Watch(f"http://{dialable(settings.config.gateway.metrics_listen)}/healthz")

    @property
    def log(self) -> Path:
        """What it says."""
        return self._settings.state_dir / "logs" / "gateway.log"

    def start(self) -> None:
        """Return at once."""
        self._process = spawn(gateway_command(self._settings), self.log)
        self._watch.begin()

    def check(self) -> None:
        """Start another one where it is needed. Raises CliError when one has ended that never answered."""
        if self._process is None:
            return
        if (code := self._process.poll()) is None:
            if not self._watch.hangs(self._process.pid):
                return
            kill(self._process)
            problem = "The gateway hung and was killed"
        elif not self._watch.answered:
            raise CliError(f"The gateway ended with code {code}: {self.log} says why.")
        else:
            problem = f"The gateway ended with code {code}"
        err.print(f"{problem}; it is started again. {self.log} says more.", style="yellow", markup=False)
        self.start()

    def stop(self) -> None:
        """End it; what runs may finish for a while."""
        if self._process is not None:
            end(self._process, self._settings.config.scheduler.shutdown_seconds)

    def hurry(self) -> None:
        """Let a stop that is under way wait for nothing that runs."""
        if self._process is not None:
            self._process.kill()


def gateway_command(settings: ServeSettings) -> list[str]:
    """Its command line."""
    gateway = settings.config.gateway
    command = [sys.executable, "-m", "polyfleet.gateway"]
    if settings.config_file:
        command += ["--config", str(settings.config_file)]
    command += ["--grpc-listen", gateway.grpc_listen, "--http-listen", gateway.http_listen]
    command += ["--metrics-listen", gateway.metrics_listen, "--fleet", gateway.fleet]
    command += ["--generation-config", gateway.generation_config, "--processes", str(gateway.processes)]
    for name, value in msgspec.structs.asdict(gateway.placement).items():
        text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
        command += ["--placement", f"{name}={text}"]
    token_file = gateway.fleet_token_file
    return [*command, "--fleet-token-file", token_file] if token_file else command

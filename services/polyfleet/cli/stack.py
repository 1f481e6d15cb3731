"""The processes of `polyfleet serve`: local Ray with the scheduler, the gateway, and the scheduler's workers."""

import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import grpc

from polyfleet.cli.config import Deployment
from polyfleet.cli.errors import CliError, calling
from polyfleet.cli.fleet_client import FleetClient
from polyfleet.cli.options import read_secret
from polyfleet.cli.processes import Descendants, end, ignore_signals, listen_for_signals, spawn
from polyfleet.cli.settings import ServeSettings
from polyfleet.v1 import fleet_pb2 as pb

if TYPE_CHECKING:
    from polyfleet.scheduler.local import LocalScheduler


class Stack:
    """Started in parts that overlap, stopped as a whole, whatever part of it had come up."""

    def __init__(self, settings: ServeSettings) -> None:
        self._settings = settings
        self._descendants = Descendants()
        self._gateway: subprocess.Popen[bytes] | None = None
        self._scheduler: LocalScheduler | None = None
        token_file = settings.config.scheduler.fleet_token_file
        token = read_secret(Path(token_file) if token_file else None, "fleet token")
        self._channel = grpc.insecure_channel(settings.fleet_address, [("grpc.enable_http_proxy", 0)])
        self._fleet = FleetClient(self._channel, token)

    @property
    def gateway_log(self) -> Path:
        """What the gateway says."""
        return self._settings.state_dir / "logs" / "gateway.log"

    def start(self) -> None:
        """Start the gateway, which dials for ever, and beside it Ray and the scheduler; then wish for the models."""
        self._gateway = spawn(self._gateway_command(), self.gateway_log)
        from polyfleet.scheduler.local import LocalScheduler

        self._scheduler = LocalScheduler(self._settings.config.scheduler)
        self._scheduler.start()
        listen_for_signals()  # Ray has installed handlers of its own
        with calling(self._settings.fleet_address):
            for deployment in self._settings.config.deployments:
                self._fleet.deploy(to_proto(deployment))

    def snapshot(self) -> pb.FleetSnapshot:
        """The fleet now. Raises CliError."""
        with calling(self._settings.fleet_address):
            return self._fleet.snapshot()

    def check(self) -> None:
        """Raise CliError when the gateway has ended; the scheduler restarts workers by itself."""
        if self._gateway is not None and (code := self._gateway.poll()) is not None:
            raise CliError(f"The gateway ended with code {code}: {self.gateway_log} says why.")

    def stop(self) -> None:
        """End every process that was started and take the wishes back; may be called in any state."""
        ignore_signals()
        self._descendants.look()
        if self._gateway is not None:
            end(self._gateway)
        if self._scheduler is not None:
            with suppress(grpc.RpcError):
                for deployment in self._settings.config.deployments:
                    self._fleet.undeploy(deployment.name)
            self._scheduler.shutdown()
        self._channel.close()
        self._descendants.end()

    def _gateway_command(self) -> list[str]:
        gateway, scheduler = self._settings.config.gateway, self._settings.config.scheduler
        command = [sys.executable, "-m", "polyfleet.gateway"]
        if self._settings.config_file:
            command += ["--config", str(self._settings.config_file)]
        command += ["--grpc-listen", gateway.grpc_listen, "--http-listen", gateway.http_listen]
        command += ["--fleet", gateway.fleet]
        token_file = gateway.fleet_token_file or scheduler.fleet_token_file
        return [*command, "--fleet-token-file", token_file] if token_file else command


def to_proto(deployment: Deployment) -> pb.ModelDeployment:
    """The wish as the scheduler takes it."""
    options = deployment.options
    return pb.ModelDeployment(
        name=deployment.name,
        model_name=deployment.model_name,
        source=deployment.source,
        accelerators=deployment.accelerators,
        workers=deployment.workers,
        options=pb.WorkerOptions(
            dtype=options.dtype,
            context_length=options.context_length,
            kv_cache_tokens=options.kv_cache_tokens,
            max_sequences=options.max_sequences,
            step_tokens=options.step_tokens,
            threads=options.threads,
        ),
    )

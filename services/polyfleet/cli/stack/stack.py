"""The processes of `polyfleet serve`: local Ray with the scheduler, its workers, the gateway and the console."""

from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import grpc

from polyfleet.cli.config import Deployment
from polyfleet.cli.errors import CliError, calling
from polyfleet.cli.fleet_client import FleetClient
from polyfleet.cli.options import read_secret
from polyfleet.cli.stack.console import StackConsole
from polyfleet.cli.stack.gateway import StackGateway
from polyfleet.cli.stack.processes import descendants, end_all, hurry_at_signals
from polyfleet.cli.stack.settings import ServeSettings, dialable
from polyfleet.cli.stack.watch import Watch
from polyfleet.cli.terminal.output import err
from polyfleet.process.channels import FLEET_CHANNEL, FleetAccess
from polyfleet.process.config import ConfigError
from polyfleet.scheduler.cluster.local import LocalScheduler
from polyfleet.scheduler.store import STATE_NAME, Store, StoreError
from polyfleet.v1 import fleet_pb2 as pb
from polyfleet.wire.adapters import with_room

if TYPE_CHECKING:
    import psutil

MIN_CPU_PLACES = 4  # memory, not cores, decides how many CPU workers fit


class Stack:
    """Started in parts that overlap, stopped as a whole, whatever part of it had come up."""

    def __init__(self, settings: ServeSettings) -> None:
        self._settings = settings
        self._gateway = StackGateway(settings)
        self._scheduler: LocalScheduler | None = None
        self._watch = Watch(f"http://{dialable(settings.config.scheduler.metrics_listen)}/healthz")  # of the scheduler
        self._console: StackConsole | None = None
        self._processes: set[psutil.Process] = set()
        token = read_secret(settings.fleet_token_file, "fleet token")
        self._channel = grpc.insecure_channel(settings.fleet_address, FLEET_CHANNEL)
        self._fleet = FleetClient(self._channel, FleetAccess(token))

    def start(self) -> None:
        """Start the gateway, which dials for ever, and beside it Ray and the scheduler; then wish for the models."""
        self._gateway.start()
        self._scheduler = LocalScheduler(self._settings.config.scheduler, local_places(self._settings))
        try:
            self._scheduler.start()
        except ConfigError as error:
            raise CliError(str(error)) from None
        with calling(self._settings.fleet_address):
            for deployment in self._settings.config.deployments:
                self._fleet.deploy(to_proto(deployment))

    def start_console(self, ca_file: Path | None) -> str:
        """Start the pages for browsers, once all else is ready; where they are, empty without any."""
        self._console = StackConsole(self._settings, ca_file)
        self._console.start()
        return self._console.url

    def snapshot(self) -> pb.FleetSnapshot:
        """The fleet now. Raises CliError."""
        with calling(self._settings.fleet_address):
            return self._fleet.snapshot()

    def check(self) -> None:
        """Start again what has ended or hangs of gateway, Ray and scheduler; workers are the scheduler's business.

        Raises CliError when it can't be, or when the gateway has ended before it ever answered.
        """
        self._gateway.check()
        if self._console is not None:
            self._console.check()
        if self._scheduler is not None:
            self._check_scheduler(self._scheduler)

    def _check_scheduler(self, scheduler: LocalScheduler) -> None:
        if scheduler.running:
            if not self._watch.hangs(scheduler.pid or 0):
                return
            err.print("The scheduler hangs and is killed.", style="yellow")
            scheduler.kill()
        err.print("Ray has failed and is started again; the workers serve on.", style="yellow")
        try:
            err.print(f"Ray runs again. It had failed: {scheduler.revive()}", style="yellow", markup=False)
        except ConfigError as error:
            raise CliError(f"Ray can't be started again: {error}") from None
        self._watch.begin()

    def remember_processes(self) -> None:
        """Note every process below this one, so that `stop` knows them even when their parents have gone."""
        self._processes.update(descendants())

    def stop(self) -> None:
        """End every process that was started and take the wishes back; may be called in any state.

        What runs may take a while to finish, unless a signal says not to wait.
        """
        hurry_at_signals(self._hurry)
        self.remember_processes()
        self._gateway.stop()
        if self._console is not None:
            self._console.stop()  # behind the gateway: chats may finish, too
        if self._scheduler is not None:
            self._scheduler.shutdown()
            self._take_wishes_back()
        self._channel.close()
        end_all(self._processes)  # what Ray leaves behind goes by itself, but not at once

    def _hurry(self) -> None:
        self._gateway.hurry()
        if self._scheduler is not None:
            self._scheduler.hurry()

    def _take_wishes_back(self) -> None:
        """Remove what `start` deployed: the next start may wish for something else. The scheduler has ended."""
        with suppress(StoreError), closing(Store(self._settings.state_dir / STATE_NAME)) as store:
            for deployment in self._settings.config.deployments:
                store.remove_deployment(deployment.name)


def local_places(settings: ServeSettings) -> dict[str, int]:
    """For how many workers of each accelerator this machine has room: one per device, on the CPU as many as wished."""
    from polyfleet.backends import BackendRegistry, BackendType

    deployments = settings.config.deployments
    named = {accelerator for deployment in deployments for accelerator in deployment.accelerators}
    experimental = {each.value for each in BackendType if each.experimental} - named
    backends = {name: BackendRegistry.find(name) for name in BackendRegistry.names() if name not in experimental}
    places = {name: len(backend.devices()) for name, backend in backends.items() if backend}
    wished = sum(deployment.workers for deployment in deployments)
    return {name: count for name, count in places.items() if count} | {"cpu": max(MIN_CPU_PLACES, wished)}


def to_proto(deployment: Deployment) -> pb.ModelDeployment:
    """The wish as the scheduler takes it."""
    return pb.ModelDeployment(
        name=deployment.name,
        model_name=deployment.model_name,
        source=deployment.source,
        accelerators=deployment.accelerators,
        workers=deployment.workers,
        options=pb.WorkerOptions(**with_room(deployment.options, len(deployment.adapters))),  # type: ignore[arg-type]
        adapters=[pb.Adapter(name=each.name, source=each.source) for each in deployment.adapters],
    )

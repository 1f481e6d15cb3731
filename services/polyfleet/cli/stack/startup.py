"""From nothing to a stack that has answered: start, wait for the models, stream the self-check."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from polyfleet.cli.config import Deployment
from polyfleet.cli.errors import CliError, ExitCode, calling
from polyfleet.cli.stack.selfcheck import self_check
from polyfleet.cli.stack.settings import ServeSettings
from polyfleet.cli.terminal.output import out
from polyfleet.cli.terminal.progress import LoadingView
from polyfleet.cli.words import state_name

if TYPE_CHECKING:
    from polyfleet.cli.stack.stack import Stack
    from polyfleet.client import Client
    from polyfleet.v1 import fleet_pb2 as pb

PATIENCE_SECONDS = 1200.0  # without progress; a load that stands still is begun anew before
POLL_SECONDS = 0.1


def bring_up(stack: "Stack", settings: ServeSettings, key: str | None, ca_file: Path | None) -> None:
    """Start everything, wait until each model has a ready worker, and stream one answer. Raises CliError."""
    from polyfleet.client import NO_RETRIES, Client, Tls

    deployments = [each for each in settings.config.deployments if each.workers]
    names = [each.model_name or each.name for each in deployments]
    with LoadingView() as view:
        view.say("Starting Ray, the scheduler and the gateway")
        stack.start()
        view.say(f"Starting {', '.join(names) or 'no worker'}")
        wait_until(lambda: fleet_known(stack, deployments, view), stack, lambda: view.loaded)
    tls = Tls(ca_file=ca_file) if settings.config.gateway.tls_cert else False
    address = settings.grpc_address
    with calling(address), Client(address, api_key=key, tls=tls, retry=NO_RETRIES) as client:
        wait_until(lambda: gateway_ready(client, names), stack)
        for name in names:
            out.print(f"[bold]Self-check[/] {name}: ", end="")
            self_check(client, name, lambda text: click.echo(text, nl=False))
            click.echo()


def wait_until(done: Callable[[], bool], stack: "Stack", progress: Callable[[], float] = lambda: 0.0) -> None:
    """Ask again and again, for as long as `progress` changes.

    Raises CliError when a process of the stack ends meanwhile, or nothing has changed for PATIENCE_SECONDS.
    """
    before, since = progress(), time.monotonic()
    while not done():
        stack.check()
        if progress() != before:
            before, since = progress(), time.monotonic()
        if time.monotonic() - since > PATIENCE_SECONDS:
            said = "the logs in the state folder say what it waits for"
            raise CliError(f"No progress for {PATIENCE_SECONDS:g} s: {said}.")
        time.sleep(POLL_SECONDS)


def fleet_known(stack: "Stack", deployments: list[Deployment], view: LoadingView) -> bool:
    """As `fleet_ready`; False while the scheduler does not answer, about which the stack knows more."""
    try:
        snapshot = stack.snapshot()
    except CliError as error:
        if error.exit_code != ExitCode.UNAVAILABLE:
            raise
        return False
    return fleet_ready(snapshot, deployments, view)


def fleet_ready(snapshot: "pb.FleetSnapshot", deployments: list[Deployment], view: LoadingView) -> bool:
    """Whether each deployment has a ready worker; shows how far each is, or what hinders it.

    Raises CliError with a worker's refusal.
    """
    ready = set()
    problems = [(each.name, each.problem) for each in snapshot.deployments]
    problems += [(each.info.deployment, each.status.reason) for each in snapshot.workers if is_loading(each)]
    view.hindered(" ".join(f"{name}: {problem}" for name, problem in problems if problem))
    for worker in snapshot.workers:
        state, status = state_name(worker.status.state), worker.status
        if state == "unhealthy" and worker.info.deployment in {each.name for each in deployments}:
            raise CliError(status.reason or f"Worker {worker.info.worker_id} is unhealthy and does not say why.")
        if state == "ready":
            ready.add(worker.info.deployment)
        view.loading(worker.info.worker_id, worker.info.deployment, 1.0 if state == "ready" else status.load_progress)
    return ready >= {each.name for each in deployments}


def is_loading(worker: "pb.FleetWorker") -> bool:
    """Whether it loads its model; a reason says that it does not get on."""
    return state_name(worker.status.state) == "loading"


def gateway_ready(client: "Client", names: list[str]) -> bool:
    """Whether the gateway answers and knows a ready worker for each model; CliError if its certificate is no good."""
    from polyfleet.client import UnavailableError

    try:
        ready = {model.name for model in client.models(timeout=5) if model.ready_workers}
    except UnavailableError as error:
        if "CERTIFICATE_VERIFY_FAILED" in error.message:
            problem = "The self-check can't trust the gateway's certificate: name its roots with --ca-file."
            raise CliError(problem, ExitCode.BAD_INPUT) from None
        return False
    return ready >= set(names)

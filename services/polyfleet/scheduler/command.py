"""The command line of `python -m polyfleet.scheduler`."""

import contextlib
import json
import os
import re
import signal
import sys
import threading
import traceback
from collections.abc import Mapping
from itertools import chain, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from polyfleet.process.config import CANNOT_START, ConfigError
from polyfleet.process.logs import LEVEL_VARIABLE, LEVELS
from polyfleet.process.signals import stopping
from polyfleet.scheduler.cluster.local import check_ports, made_ray_folder
from polyfleet.scheduler.config import SchedulerConfig, load_config
from polyfleet.scheduler.marks import end_workers
from polyfleet.scheduler.store import STATE_NAME, Store, StoreError
from polyfleet.wire.auth import AuthSetupError, check_bind, fleet_token, is_loopback
from polyfleet.wire.limits import ACCELERATOR

if TYPE_CHECKING:
    from polyfleet.scheduler.cluster.local_ray import LocalRay

RAY_LOST = 3
STOP_SECONDS = 3.0  # for the scheduler to stop itself, once its workers have had their time
LOOPBACK_RAY = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}  # Ray's name for: this machine's address is 127.0.0.1
LOCAL_ENVIRONMENT = {  # of a Ray of our own; read when Ray is imported
    **LOOPBACK_RAY,
    "RAY_AUTH_MODE": "token",
    "RAY_ROTATION_MAX_BYTES": str(8 * 1024 * 1024),  # of each of Ray's logs
    "RAY_ROTATION_BACKUP_COUNT": "1",
    "RAY_task_events_report_interval_ms": "0",  # nobody reads them
    "RAY_enable_metrics_collection": "0",
}
EPILOG = """\b
Examples:
  python -m polyfleet.scheduler
      starts a Ray of this machine, serves until SIGTERM, SIGHUP or Ctrl-C, then stops every worker
  python -m polyfleet.scheduler --address auto --config /etc/polyfleet.yaml
      creates the scheduler in the Ray that runs here, or finds it, and returns

Exit status: 0 well, 2 can't start, 3 the Ray that it started did not start, or has failed.
"""


class Places(click.ParamType):  # type: ignore[type-arg]
    """`cpu=4,cuda=1`: for how many workers of each accelerator there is room."""

    name = "accelerator=n,…"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Mapping[str, int]:
        """The text as a dict."""
        places: dict[str, int] = {}
        for part in str(value).split(","):
            accelerator, _, count = part.partition("=")
            if not ACCELERATOR.fullmatch(accelerator) or not re.fullmatch("[0-9]{1,6}", count) or int(count) < 1:
                self.fail(f"{part!r} is not ACCELERATOR=N, such as cpu=4, with N from 1.", param, ctx)
            places[accelerator] = int(count)
        return places


def default_places() -> dict[str, int]:
    """Room for a CPU worker per core, and for four on small machines: memory, not cores, decides how many fit."""
    return {"cpu": max(4, os.cpu_count() or 1)}


@click.command(epilog=EPILOG, context_settings={"show_default": True, "max_content_width": 110})
@click.option("--config", type=click.Path(path_type=Path), help="YAML file; its section `scheduler` holds the options.")
@click.option("--address", default="local", help="Ray to join: auto, host:port; local starts one.")
@click.option("--places", type=Places(), help="With --address local: room for workers.  [default: cpu=CORES]")
@click.option("--listen", help="Of the Fleet service.  [default: 127.0.0.1:50052]")
@click.option("--metrics-listen", help="Of /metrics.  [default: 127.0.0.1:9102]")
@click.option("--advertise", help="host:port at which workers reach the Fleet service.  [default: as --listen]")
@click.option("--state-dir", help="Folder for all state.  [default: ~/.local/state/polyfleet]")
@click.option("--fleet-token-file", help="First line: the token that callers need; none: loopback only.")
@click.option("--keys-file", help="The gateway's keys; operators' keys in it may deploy, undeploy and drain.")
@click.option(
    "--log-level",
    type=click.Choice(LEVELS, case_sensitive=False),
    envvar=LEVEL_VARIABLE,
    show_envvar=True,
    help="[default: info]",
)
@click.option("--stop-at-eof", is_flag=True, hidden=True, help="Stop when standard input ends: with the parent.")
@click.option("--ray-folder", hidden=True, help="Of Ray's files; the parent made it.")
def main(
    config: Path | None,
    address: str,
    places: Mapping[str, int] | None,
    stop_at_eof: bool,
    ray_folder: str | None,
    **overrides: str | None,
) -> None:
    """Run the scheduler: it keeps as many workers as the deployments want and tells gateways about them."""
    try:
        settings = load_config(config, overrides)
        token = fleet_token(settings.fleet_token_file or None)
        check_bind(settings.listen, token, keys=bool(settings.fleet_keys_file))
        if address == "local":
            check_ports(settings)
            Store(settings.state_path / STATE_NAME).close()  # what can't be used is told now, not after Ray's start
            _run_locally(settings, places or default_places(), stop_at_eof, ray_folder)
        else:
            _create_in(settings, address)
    except (ConfigError, StoreError, AuthSetupError) as error:
        _say({"error": str(error)})
        click.echo(error, err=True)
        sys.exit(CANNOT_START)


def _run_locally(config: SchedulerConfig, places: Mapping[str, int], stop_at_eof: bool, ray_folder: str | None) -> None:
    """Serve until told to stop, then stop everything. What it and Ray write is for this user alone.

    When Ray is lost, whoever started this process may start it again: then the workers serve on.
    """
    os.umask(0o077)
    os.environ.update(LOCAL_ENVIRONMENT)
    with contextlib.suppress(OSError):  # absent: Ray makes one
        (Path.home() / ".ray" / "auth_token").chmod(0o600)
    from polyfleet.scheduler.cluster.local_ray import LocalRay, RayLostError

    told, hurried = threading.Event(), threading.Event()  # by the first signal, by the next one
    signals = chain((told,), repeat(hurried))
    for number in stopping():
        signal.signal(number, lambda *_: next(signals).set())
    if stop_at_eof:
        threading.Thread(target=_wait_for_eof, args=(told,), daemon=True).start()
    lost = ""
    try:
        with LocalRay(places, ray_folder or made_ray_folder()) as ray:  # made when no signal can leave it
            _serve(config, ray, told, hurried)
    except RayLostError as error:
        lost = str(error)
    except Exception as error:  # whatever it was, this process must end: a call of Ray's would keep it
        traceback.print_exc()
        lost = f"The scheduler's process failed: {error or type(error).__name__}."
    if not lost or not stop_at_eof or told.is_set():
        end_workers(config.state_path, 0 if hurried.is_set() else config.shutdown_seconds)
    if lost:
        _say({"lost": lost})
        click.echo(lost, err=True)
    os._exit(RAY_LOST if lost and not told.is_set() else 0)  # a call of Ray's may still be under way


def _serve(config: SchedulerConfig, ray: "LocalRay", told: threading.Event, hurried: threading.Event) -> None:
    """From Ray's start to the fleet's end. Raises RayLostError."""
    from ray.exceptions import RayError

    from polyfleet.scheduler.actor import find_or_create, shut_down
    from polyfleet.scheduler.cluster.local_ray import RayLostError

    try:
        ray.call(lambda: find_or_create(config), told)
        if told.is_set():
            return  # a worker that was started already is ended with Ray
        _say(_addresses(config, ray.address))
        ray.wait(told)
        seconds = config.shutdown_seconds + STOP_SECONDS
        ray.call(lambda: shut_down(config.shutdown_seconds), hurried, seconds)
    except (RayError, ConfigError) as error:
        raise RayLostError((str(error).strip() or type(error).__name__).splitlines()[-1]) from None


def _wait_for_eof(told: threading.Event) -> None:
    sys.stdin.read()
    told.set()


def _create_in(config: SchedulerConfig, address: str) -> None:
    """Create or find the actor in a running cluster."""
    os.environ.setdefault("RAY_AUTH_MODE", "token")  # read when Ray is imported; only a local start has it on anyway
    if is_loopback(address):
        os.environ.update(LOOPBACK_RAY)
    from ray.exceptions import AuthenticationError

    from polyfleet.scheduler.actor import find_or_create
    from polyfleet.scheduler.cluster.local_ray import joined_ray

    try:
        with joined_ray(address) as ray_address:
            find_or_create(config)
            _say(_addresses(config, ray_address))
    except ConnectionError:
        raise ConfigError(f"There is no Ray to join at {address}: start one, or leave --address out.") from None
    except AuthenticationError:
        raise ConfigError(
            f"The Ray at {address} needs its token: have it in ~/.ray/auth_token, or name its file with "
            "RAY_AUTH_TOKEN_PATH (RAY_AUTH_MODE=disabled for a Ray without one)."
        ) from None


def _addresses(config: SchedulerConfig, ray_address: str) -> dict[str, str]:
    return {"fleet": config.listen, "metrics": config.metrics_listen, "ray": ray_address}


def _say(line: Mapping[str, str]) -> None:
    """One line of JSON for whoever started this process."""
    click.echo(json.dumps(dict(line)))
    sys.stdout.flush()

"""`polyfleet serve`: everything on this machine with one command."""

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from polyfleet.cli.chosen import Choice, say_chosen
from polyfleet.cli.errors import CliError, ExitCode
from polyfleet.cli.options import ACCELERATOR_NAME, FILE, TEXT, GivenPath, examples, read_secret
from polyfleet.cli.stack import hints
from polyfleet.cli.stack.processes import Stopped, stop_on_signals
from polyfleet.cli.stack.settings import Flags, ServeSettings, check_models, check_ports, resolve
from polyfleet.cli.stack.startup import bring_up
from polyfleet.cli.state_folder import claimed, made_token, published
from polyfleet.cli.terminal.output import err, out
from polyfleet.process.flags import adapter_flag, option_flags, take_options

if TYPE_CHECKING:
    from polyfleet.cli.stack.stack import Stack

WATCH_SECONDS = 0.5


@click.command(
    epilog=examples(
        "polyfleet serve",
        "polyfleet serve ./model.gguf --model-name my-model --workers 2",
        "polyfleet serve HuggingFaceTB/SmolLM2-1.7B-Instruct",
        "polyfleet serve --config polyfleet.yaml --once",
    )
)
@click.option("--config", type=FILE, help="YAML file; `polyfleet config schema` describes it. Flags override it.")
@click.argument("source", metavar="[PATH_OR_NAME]", type=TEXT, required=False)
@click.option("--model", type=TEXT, metavar="PATH_OR_NAME", help="The same; default: SmolLM2-135M-Instruct.")
@click.option("--model-name", type=TEXT, help="Served name; default: from the path.")
@click.option("--workers", type=click.IntRange(1, 1000), help="Workers of the model; default: 1.")
@click.option(
    "--accelerator",
    "accelerators",
    type=ACCELERATOR_NAME,
    multiple=True,
    help="Of its workers, in order of preference; repeat it; default: the best that is here.",
)
@adapter_flag()
@option_flags()
@click.option("--once", is_flag=True, help="Stop after the self-check; exit code 0 when it passed.")
@click.option("--grpc-listen", metavar="HOST:PORT", help="gRPC of the gateway; default: 127.0.0.1:50051.")
@click.option("--http-listen", metavar="HOST:PORT", help="HTTP of the gateway; default: 127.0.0.1:8000.")
@click.option("--gateway-metrics-listen", metavar="HOST:PORT", help="Metrics of the gateway; default: 127.0.0.1:9101.")
@click.option(
    "--gateway-processes", type=click.IntRange(1, 64), help="Gateways side by side behind its ports; default: 1."
)
@click.option("--fleet-listen", metavar="HOST:PORT", help="Fleet of the scheduler; default: 127.0.0.1:50052.")
@click.option("--metrics-listen", metavar="HOST:PORT", help="Metrics of the scheduler; default: 127.0.0.1:9102.")
@click.option(
    "--console-port",
    type=click.IntRange(0, 65535),
    help="Of the console, the fleet in a browser; where it is taken, the next free one; 0: no console; default: 8080.",
)
@click.option(
    "--generation-config",
    type=click.Choice(["auto", "none"]),
    help="Whether a model's own sampling defaults hold for what requests leave out; default: auto.",
)
@click.option(
    "--placement",
    type=TEXT,
    multiple=True,
    metavar="NAME=VALUE",
    help="How the gateway chooses workers, such as tie_seconds=0.05; repeat it.",
)
@click.option("--state-dir", type=GivenPath(path_type=Path, file_okay=False), help="Where state and logs live.")
@click.option("--api-key-file", type=FILE, help="Key for the self-check, when the configuration asks for keys.")
@click.option("--ca-file", type=FILE, help="PEM roots for the self-check, when the configuration turns TLS on.")
def serve(
    source: str | None, model: str | None, once: bool, api_key_file: Path | None, ca_file: Path | None, **flags: Any
) -> None:
    """Start Ray, scheduler, workers, gateway and console on this machine, check them, keep them up until Ctrl-C.

    PATH_OR_NAME is a GGUF file, a folder with one, a Hugging Face folder, a folder of the hub's cache, or a name on
    the hub (owner/name), which is fetched. Without one, and without a configuration, it serves the small model that
    comes along, on the best accelerator there is.
    """
    if source and model:
        raise CliError(f"Name one model, not {source!r} and {model!r}.", ExitCode.BAD_INPUT)
    os.umask(0o077)  # state and logs are for this user alone
    settings = resolve(Flags(options=take_options(flags), model=model or source, **flags))
    self_check_key(settings, api_key_file)
    check_models(settings)
    settings = with_users_choice(settings)
    check_ports(settings)
    with claimed(settings.state_dir):
        token_file = settings.fleet_token_file or made_token(settings.state_dir)
        with published(settings.fleet_address, token_file):
            settings = settings.with_fleet_token(token_file).with_benchmarks(api_key_file, ca_file)
            run(settings, once, api_key_file, ca_file)


def with_users_choice(settings: ServeSettings) -> ServeSettings:
    """The settings with what this user chose where deployments say nothing; tells what that is. Raises CliError."""
    completed = settings.with_choice(Choice.read())
    for before, after in zip(settings.config.deployments, completed.config.deployments, strict=True):
        say_chosen(before.options, after.options)
    return completed


def run(settings: ServeSettings, once: bool, api_key_file: Path | None, ca_file: Path | None) -> None:
    """The stack's life, from the first process to the last. Raises CliError."""
    from polyfleet.cli.stack.stack import Stack

    key = self_check_key(settings, api_key_file)
    began, ready = time.monotonic(), False
    stack = Stack(settings)
    try:
        with stop_on_signals(stack.remember_processes):
            try:
                bring_up(stack, settings, key, ca_file)
                ready = True
                out.print(f"[green]Ready[/] after {time.monotonic() - began:.1f} s.")
                if not once:
                    announce(settings, api_key_file, ca_file, stack.start_console(ca_file))
                    stay(stack)
            finally:
                with suppress(OSError):  # the terminal may have gone
                    grace = settings.config.scheduler.shutdown_seconds
                    err.print(f"Stopping. What runs may finish for {grace:g} s; Ctrl-C again cuts it off.", style="dim")
                stack.stop()
    except Stopped:
        if not ready:
            raise CliError(
                "Interrupted while starting; all that had started is stopped.", ExitCode.INTERRUPTED
            ) from None


def self_check_key(settings: ServeSettings, api_key_file: Path | None) -> str | None:
    """The key that the self-check presents. Raises CliError when one is needed and not given."""
    if settings.config.gateway.keys_file and api_key_file is None:
        raise CliError(
            "The configuration asks for keys: give the self-check one with --api-key-file.", ExitCode.BAD_INPUT
        )
    return read_secret(api_key_file, "API key")


def announce(settings: ServeSettings, api_key_file: Path | None, ca_file: Path | None, console: str) -> None:
    """Print endpoints and calls to copy."""
    out.print(f"\n{hints.endpoints(settings, console)}")
    for name, call in hints.calls(settings, api_key_file, ca_file).items():
        out.print(f"\n[bold]{name}[/]")
        out.print(call, markup=False)
    out.print("\nCtrl-C stops everything.")


def stay(stack: "Stack") -> None:
    """Until a signal raises Stopped, or a process that should run has ended (CliError)."""
    while True:
        stack.check()
        time.sleep(WATCH_SECONDS)

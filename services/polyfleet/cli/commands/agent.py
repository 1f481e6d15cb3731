"""`polyfleet agent`: a worker on a host that nobody can dial, a Mac beside the cluster say."""

import re
import socket
import sys
from pathlib import Path
from typing import Any

import click

from polyfleet.cli.errors import CliError, ExitCode
from polyfleet.cli.options import FILE, TEXT, GivenPath, check_address, examples
from polyfleet.cli.stack.settings import MODEL_NAME, bundled_model, found, named
from polyfleet.process.flags import FiniteRange, WorkerId, adapter_flag, option_flags, take_options
from polyfleet.process.logs import LEVEL_VARIABLE, LEVELS, set_up_logging
from polyfleet.wire.auth import FLEET_KEYS_FILE, FLEET_TOKEN_FILE
from polyfleet.wire.options import OPTIONS, EngineOptions, OptionValue

PASSED_ON = ("deployment", "fleet_keys_file", "fleet_tls_dir", "drain_timeout", "metrics_listen", "log_level")


@click.command(
    epilog=examples(
        "polyfleet agent --join llm.example.com:50051 --tls --token-file fleet.token",
        "polyfleet agent --join 10.0.0.1:50051 --token-file fleet.token --accelerator mps --model ./model.gguf",
    )
)
@click.option(
    "--join", required=True, metavar="HOST:PORT", help="gRPC port of a gateway, or of the Service before all."
)
@click.option("--tls", is_flag=True, help="The gateway speaks TLS with a certificate of the system's roots.")
@click.option("--ca-file", type=FILE, help="PEM roots to trust; given: TLS.")
@click.option(
    "--token-file",
    type=FILE,
    envvar=FLEET_TOKEN_FILE,
    show_envvar=True,
    help="First line: the fleet token, or a key of role worker.",
)
@click.option("--name", type=WorkerId(), help="Unique in the fleet: the worker's id.  [default: this host's name]")
@click.option("--model", type=TEXT, metavar="PATH_OR_NAME", help="Default: SmolLM2-135M-Instruct.")
@click.option("--model-name", type=TEXT, help="Served name; default: from the path.")
@click.option("--accelerator", default="auto", show_default=True, help="One that `polyfleet backends info` lists.")
@click.option("--deployment", type=TEXT, help="Whose worker it is, where its key is for some deployments alone.")
@adapter_flag()
@option_flags()
@click.option(
    "--fleet-keys-file",
    type=FILE,
    envvar=FLEET_KEYS_FILE,
    help="Hashes of the keys that gateways and the scheduler show, in a fleet whose parts have keys.",
)
@click.option(
    "--fleet-tls-dir",
    type=GivenPath(path_type=Path, file_okay=False),
    envvar="POLYFLEET_FLEET_TLS_DIR",
    help="Folder with tls.crt, tls.key, ca.crt of role worker, in a fleet whose parts speak TLS to each other.",
)
@click.option("--metrics-listen", metavar="HOST:PORT", default="127.0.0.1:0", show_default=True, help="Of /metrics.")
@click.option(
    "--drain-timeout", type=FiniteRange(0), default=300.0, show_default=True, help="Seconds that draining may take."
)
@click.option(
    "--log-level",
    type=click.Choice(LEVELS, case_sensitive=False),
    envvar=LEVEL_VARIABLE,
    default="info",
    show_default=True,
)
def agent(
    join: str,
    tls: bool,
    ca_file: Path | None,
    token_file: Path | None,
    name: str | None,
    model: str | None,
    **flags: Any,
) -> None:
    """Serve a model of this host to a fleet that can't dial it: the agent dials a gateway, and all goes over that
    connection. It joins again for ever when the connection is lost, and drains at SIGTERM.

    It does not start when the model does not fit the free memory: exit code 3.
    """
    check_address(join)
    given = take_options(flags)
    source = found(model) if model else str(bundled_model())
    served = flags.pop("model_name") or (named(model) if model else MODEL_NAME)
    check_memory(source, flags["accelerator"], given)
    where = [f"--join={join}", *(["--join-tls"] if tls else []), *([f"--join-ca-file={ca_file}"] if ca_file else [])]
    sys.exit(run([*worker_arguments(name or host_name(), source, served, token_file, given, flags), *where]))


def host_name() -> str:
    """This host's, as an id may be."""
    return re.sub(r"[^A-Za-z0-9._:-]", "-", socket.gethostname())[:128] or "agent"


def check_memory(source: str, accelerator: str, given: dict[str, OptionValue]) -> None:
    """Raise CliError when no device that is meant has room for the model, or when it is no model."""
    from polyfleet.backends import BackendUnavailable
    from polyfleet.engine.fitting import site_here
    from polyfleet.engine.inspection import inspect_model
    from polyfleet.models.errors import ModelFileError

    try:
        site = site_here(accelerator)
        (fit,) = inspect_model(source, EngineOptions(**given), (site,), lambda _: "").fits  # type: ignore[arg-type]
    except ModelFileError as error:
        raise CliError(f"The model {error}.", ExitCode.BAD_INPUT) from None
    except (BackendUnavailable, ValueError) as error:
        raise CliError(f"{str(error).rstrip('.')}.", ExitCode.UNAVAILABLE) from None
    if fit.problem:
        better = "".join(f"\n  It would fit with {change}." for change in fit.changes)
        raise CliError(f"The model does not fit {fit.device}: {fit.problem}.{better}", ExitCode.UNAVAILABLE)


def worker_arguments(
    name: str, source: str, served: str, token_file: Path | None, given: dict[str, OptionValue], flags: dict[str, Any]
) -> list[str]:
    """The command line of the worker that an agent is."""
    wanted = {"worker-id": name, "model": source, "model-name": served, "accelerator": flags["accelerator"]}
    wanted |= {"fleet-token-file": token_file, "listen": "127.0.0.1:0"}
    wanted["transfer-listen"] = "off"  # no other worker can dial it
    wanted |= {each.replace("_", "-"): flags[each] for each in PASSED_ON if each in flags}
    options = [f"{OPTIONS[each].flag}={str(value).lower()}" for each, value in given.items()]
    adapters = [f"--adapter={each}={path}" for each, path in flags["adapter"]]
    return [*(f"--{each}={value}" for each, value in wanted.items() if value is not None), *options, *adapters]


def run(arguments: list[str]) -> int:
    """Serve until told to end; the exit status. Raises CliError."""
    import asyncio

    from polyfleet.serving.command import config_of
    from polyfleet.serving.command import main as worker_command
    from polyfleet.serving.log_tail import TAIL
    from polyfleet.serving.process import StartError, WorkerProcess

    options = worker_command.make_context(click.get_current_context().command_path, arguments).params
    set_up_logging(options["log_level"], process="agent")
    TAIL.install("agent")
    try:
        return asyncio.run(WorkerProcess(config_of(options)).run())
    except StartError as error:
        raise CliError(str(error), ExitCode.BAD_INPUT) from None

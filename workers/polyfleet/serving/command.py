"""The command line of `python -m polyfleet.serving`, and its section `worker` of a YAML file."""

import asyncio
import sys
from pathlib import Path
from typing import Any

import click
import msgspec

from polyfleet.process.channels import FLEET_TLS_DIR
from polyfleet.process.config import CANNOT_START, ConfigError
from polyfleet.process.config_file import read_config
from polyfleet.process.flags import FiniteRange, WorkerId, adapter_flag, option_flags, take_options
from polyfleet.process.listening import MAX_PORT, is_address
from polyfleet.process.logs import LEVEL_VARIABLE, LEVELS, set_up_logging
from polyfleet.serving.agent.config import JoinConfig
from polyfleet.serving.config import WorkerConfig
from polyfleet.serving.log_tail import TAIL
from polyfleet.serving.process import StartError, WorkerProcess
from polyfleet.serving.worker import LoadSpec
from polyfleet.v1 import fleet_pb2 as fleet
from polyfleet.wire.adapters import check_adapters, with_room
from polyfleet.wire.auth import FLEET_KEYS_FILE, FLEET_TOKEN_FILE, join_host_port, split_host_port
from polyfleet.wire.ids import new_id
from polyfleet.wire.limits import FieldError
from polyfleet.wire.options import OPTIONS, OptionValue

ROLES = {
    "both": fleet.WORKER_ROLE_UNSPECIFIED,
    "prefill": fleet.WORKER_ROLE_PREFILL,
    "decode": fleet.WORKER_ROLE_DECODE,
}
EPILOG = """\b
Examples:
  A worker without a model, which a launcher tells what to load:
    python -m polyfleet.serving --fleet 127.0.0.1:50052 --accelerator cpu
  A worker by hand:
    python -m polyfleet.serving --model SmolLM2-135M-Instruct.Q4_1.gguf --model-name smollm2

\b
Exit status: 0 drained, 1 the engine ended by itself or can't be trusted, 2 can't start, 3 the model can't be served.
SIGTERM, SIGINT or SIGHUP drains; a second one, but for SIGHUP, ends at once.
"""


class Address(click.ParamType):  # type: ignore[type-arg]
    """host:port."""

    name = "host:port"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The text itself when it is an address."""
        if not is_address(str(value)):
            self.fail(f"{value!r} is not host:port with a port from 0 to {MAX_PORT}.", param, ctx)
        return str(value)


class ConfigFile(msgspec.Struct, frozen=True):
    """The whole file; the other processes' sections are theirs."""

    worker: dict[str, Any] = {}


def apply_config(ctx: click.Context, _: click.Parameter, path: Path | None) -> None:
    """Make the file's section `worker` the defaults of the options; flags override it."""
    if path is None:
        return
    try:
        section = read_config(path, ConfigFile).worker
    except ConfigError as error:
        raise click.BadParameter(str(error)) from None
    given = {key.replace("-", "_"): value for key, value in section.items()}
    known = {parameter.name for parameter in ctx.command.params if parameter.expose_value}
    if len(given) != len(section):
        raise click.BadParameter(f"{path}: worker has a key twice, once with - and once with _.")
    for key in given.keys() - known:
        raise click.BadParameter(f"{path}: worker.{key} is unknown. Known: {', '.join(sorted(filter(None, known)))}.")
    ctx.default_map = given


def transfer_address(ctx: click.Context, parameter: click.Parameter, value: str) -> str:
    """auto, off, or an address."""
    return value if value in ("auto", "off") else str(Address().convert(value, parameter, ctx))


@click.command(epilog=EPILOG, context_settings={"show_default": True, "max_content_width": 110})
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    is_eager=True,
    expose_value=False,
    callback=apply_config,
    help="YAML file; its section `worker` holds these options by name.",
)
@click.option("--listen", type=Address(), default="127.0.0.1:0", help="Of the Worker service; port 0: any free one.")
@click.option("--metrics-listen", type=Address(), default="127.0.0.1:0", help="Of /metrics.")
@click.option(
    "--transfer-listen",
    default="auto",
    callback=transfer_address,
    help="Where other workers fetch prefixes that this one has computed; auto: --listen's host, any free port; off: "
    "nowhere, and it fetches none.",
)
@click.option("--advertise-host", help="Host that others reach this worker at. [default: as --listen]")
@click.option("--fleet", type=Address(), help="The scheduler's Fleet service to register at. [default: none]")
@click.option("--worker-id", type=WorkerId(), help="Unique in the fleet. [default: made up]")
@click.option(
    "--accelerator",
    default="auto",
    help="One of those that `polyfleet backends info` lists.",
)
@click.option("--device", default="auto", help="One of several, as cuda:1; auto: by --accelerator and --place.")
@click.option(
    "--place", type=click.IntRange(0), default=0, help="This worker's number on its host; they take devices in turn."
)
@click.option("--lock-file", type=click.Path(path_type=Path), help="Holds pid and addresses; one live worker per file.")
@click.option("--deployment", help="Whose wish this worker fulfils.")
@click.option(
    "--role",
    type=click.Choice(list(ROLES)),
    default="both",
    help="Of a worker without --deployment: it computes prompts for others of its model, decodes behind them, or both.",
)
@click.option("--model", help="GGUF file or Hugging Face folder to load. [default: wait for a Load call]")
@click.option("--model-name", help="Served name. [default: --deployment, else the file's name]")
@adapter_flag()
@option_flags()
@click.option(
    "--fleet-token-file",
    type=click.Path(path_type=Path),
    envvar=FLEET_TOKEN_FILE,
    show_envvar=True,
    help="First line: the token that callers need, and that Fleet is shown; none: loopback only.",
)
@click.option(
    "--fleet-keys-file",
    type=click.Path(path_type=Path),
    envvar=FLEET_KEYS_FILE,
    show_envvar=True,
    help="Hashes of the keys that gateways and the scheduler show, by role: then the token is not asked for.",
)
@click.option(
    "--fleet-tls-dir",
    type=click.Path(path_type=Path),
    envvar=FLEET_TLS_DIR,
    show_envvar=True,
    help="Folder with tls.crt, tls.key, ca.crt of role worker: callers need certificates of these roots, and Fleet is "
    "called over TLS. Files that are renewed are read.",
)
@click.option("--drain-timeout", type=FiniteRange(0), default=300.0, help="Seconds that draining may take.")
@click.option(
    "--canary-interval",
    type=FiniteRange(0),
    default=30.0,
    help="Seconds between runs of a prompt with a known answer; 0: only before the worker is ready.",
)
@click.option(
    "--stall-timeout",
    type=FiniteRange(0.05),
    default=60.0,
    help="Seconds without a step although there is work (or the canary is due) before sequences move elsewhere.",
)
@click.option(
    "--replace-after",
    type=click.IntRange(1),
    default=3,
    help="Failed canaries in a row, or stall timeouts, before the engine process is replaced; again so many: exit 1.",
)
@click.option(
    "--load-stall-timeout",
    type=FiniteRange(0.05),
    default=300.0,
    help="Seconds that a load may stand still, however long it takes, before that is said; after --replace-after times "
    "as long it is given up.",
)
@click.option(
    "--telemetry-interval",
    type=FiniteRange(0.05),
    default=10.0,
    help="Seconds between readings of the device (health, temperature, memory).",
)
@click.option(
    "--log-level",
    type=click.Choice(LEVELS, case_sensitive=False),
    envvar=LEVEL_VARIABLE,
    show_envvar=True,
    default="info",
)
@click.option("--join", type=Address(), hidden=True, help="A gateway's gRPC port, dialled in place of --fleet.")
@click.option("--join-tls", is_flag=True, hidden=True, help="It speaks TLS, with the system's roots.")
@click.option("--join-ca-file", type=click.Path(path_type=Path), hidden=True, help="It speaks TLS, with these roots.")
@click.option("--launched", is_flag=True, hidden=True, help="A launcher started it, and may stop it.")
@click.option("--fleet-id", default="", envvar="POLYFLEET_FLEET_ID", hidden=True, help="Whose worker it is.")
def main(**options: Any) -> None:
    """Run one worker: it serves one model on one device to gateways.

    Registers at --fleet for ever and serves on without it.
    """  # fmt: skip
    set_up_logging(options["log_level"], process="worker")
    TAIL.install("worker")
    try:
        status = asyncio.run(WorkerProcess(config_of(options)).run())
    except StartError as error:
        click.echo(error, err=True)
        status = CANNOT_START
    sys.exit(status)


def config_of(options: dict[str, Any]) -> WorkerConfig:
    """The options as a WorkerConfig."""
    given = take_options(options)
    if given and not options["model"]:
        flag = OPTIONS[next(iter(given))].flag
        raise click.UsageError(f"{flag} belongs to --model: a Load call brings options of its own.")
    if options["adapter"] and not options["model"]:
        raise click.UsageError("--adapter belongs to --model: what has none is told of adapters by its scheduler.")
    check_role(options)
    return WorkerConfig(
        worker_id=options["worker_id"] or new_id("w"),
        listen=options["listen"],
        metrics_listen=options["metrics_listen"],
        transfer_listen=transfer_listen(options["transfer_listen"], options["listen"]),
        advertise_host=options["advertise_host"] or "",
        fleet=options["fleet"] or "",
        accelerator=options["accelerator"],
        device=options["device"],
        place=options["place"],
        deployment=options["deployment"] or "",
        role=ROLES[options["role"]],
        lock_file=options["lock_file"],
        launched=options["launched"],
        join=join_of(options),
        fleet_id=options["fleet_id"],
        load=load_of(options, given) if options["model"] else None,
        fleet_token_file=options["fleet_token_file"],
        fleet_keys_file=options["fleet_keys_file"],
        fleet_tls_dir=options["fleet_tls_dir"],
        drain_timeout=options["drain_timeout"],
        canary_interval=options["canary_interval"],
        stall_timeout=options["stall_timeout"],
        replace_after=options["replace_after"],
        load_stall_timeout=options["load_stall_timeout"],
        telemetry_interval=options["telemetry_interval"],
        log_level=options["log_level"],
    )


def check_role(options: dict[str, Any]) -> None:
    """Raise UsageError where the worker can't have the role that it is given."""
    role = options["role"]
    if role != "both" and options["deployment"]:
        raise click.UsageError(f"--role {role} is for a worker without --deployment, whose role is the deployment's.")
    if role != "both" and options["transfer_listen"] == "off":
        raise click.UsageError(f"--role {role} needs --transfer-listen: with off, no prompt travels to or from it.")


def join_of(options: dict[str, Any]) -> JoinConfig | None:
    """Where an agent joins; `polyfleet agent` gives these."""
    return JoinConfig(options["join"], options["join_tls"], options["join_ca_file"]) if options["join"] else None


def transfer_listen(given: str, listen: str) -> str:
    """host:port of what the option says; empty for off."""
    if given == "auto":
        return join_host_port(split_host_port(listen)[0], 0)
    return "" if given == "off" else given


def load_of(options: dict[str, Any], given: dict[str, OptionValue]) -> LoadSpec:
    """The model given at the start, and how it is to run."""
    name = options["model_name"] or options["deployment"] or Path(options["model"]).stem
    adapters = tuple(fleet.Adapter(name=each, source=source) for each, source in options["adapter"])
    try:
        check_adapters(adapters, "--adapter")
    except FieldError as error:
        raise click.UsageError(f"{error}.") from None
    wanted = fleet.WorkerOptions(**with_room(given, len(adapters)))  # type: ignore[arg-type]
    return LoadSpec(options["model"], name, options["deployment"] or "", wanted, adapters)

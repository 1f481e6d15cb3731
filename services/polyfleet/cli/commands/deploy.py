"""`polyfleet deploy | scale`: make a deployment, or change one."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from polyfleet.cli.chosen import Choice, say_chosen
from polyfleet.cli.errors import CliError, ExitCode
from polyfleet.cli.options import ACCELERATOR_NAME, TEXT, examples, fleet_options, json_option
from polyfleet.cli.terminal.output import command_name, err, out, print_json
from polyfleet.process.flags import option_flags, take_options
from polyfleet.wire.options import OptionValue

if TYPE_CHECKING:
    from polyfleet.v1 import fleet_pb2 as pb


@click.command(
    epilog=examples(
        "polyfleet deploy smollm2 ./SmolLM2-135M-Instruct.Q4_1.gguf --context-length 4096",
        "polyfleet deploy smollm2 ./SmolLM2-135M-Instruct.Q4_1.gguf --check",
        "polyfleet deploy smollm2 --workers 3",
        "polyfleet deploy smollm2 ./SmolLM2-135M-Instruct.Q8_0.gguf --canary 10",
        "polyfleet deploy smollm2 --min-workers 0 --max-workers 4 --idle-seconds 900",
        "polyfleet deploy prompts ./SmolLM2-135M-Instruct.Q4_1.gguf --model-name smollm2 --role prefill",
    )
)
@click.argument("name", type=TEXT)
@click.argument("source", type=TEXT, required=False)
@click.option("--workers", type=click.IntRange(0, 1000), help="How many workers.  [default: 1]")
@click.option("--model-name", type=TEXT, help="Served name.  [default: NAME]")
@click.option(
    "--accelerator",
    "accelerators",
    type=ACCELERATOR_NAME,
    multiple=True,
    help="Where it may run, in order of preference; repeat it.",
)
@click.option(
    "--role",
    type=click.Choice(["both", "prefill", "decode"]),
    help="What its workers are for: prompts of other deployments of its model name, decoding behind them, or both.",
)
@click.option("--min-workers", type=click.IntRange(0, 1000), help="At least; 0: none while nobody asks.  [default: 1]")
@click.option("--max-workers", type=click.IntRange(1, 1000), help="At most: their number follows what they have to do.")
@click.option("--queue-seconds", type=click.FloatRange(0, 86_400, min_open=True), help="Aim: requests wait less.")
@click.option("--kv-use", type=click.FloatRange(0, 1, min_open=True), help="Aim: KV cache or slots in use.")
@click.option(
    "--idle-seconds", type=click.FloatRange(0, 86_400, min_open=True), help="Without requests, until there is none."
)
@click.option(
    "--down-seconds", type=click.FloatRange(0, 86_400, min_open=True), help="Of less to do, until there are fewer."
)
@click.option(
    "--canary",
    type=click.IntRange(1, 99),
    metavar="PERCENT",
    help="Give what changes so many of the new requests; `polyfleet rollout traffic` changes that.",
)
@click.option("--max-surge", type=click.IntRange(1, 1000), help="Workers more while they are replaced.  [default: 1]")
@click.option(
    "--progress-seconds",
    type=click.FloatRange(1, 86_400),
    help="Go back when no other worker became ready for so long.  [default: 600]",
)
@click.option(
    "--max-error-ratio",
    type=click.FloatRange(0, 1, min_open=True),
    help="Go back when so much more of its sequences fail than before.  [default: 0.05]",
)
@click.option("--check", is_flag=True, help="Deploy nothing: say whether and how it fits the fleet's devices.")
@option_flags()
@fleet_options
@json_option
def deploy(
    name: str, source: str | None, fleet: str, fleet_token_file: Path | None, as_json: bool, **changes: Any
) -> None:
    """Serve the model in SOURCE as NAME; without SOURCE, change the deployment of that name.

    SOURCE is a GGUF file or a Hugging Face folder, as the worker's host sees it, or owner/name on the hub, from which
    that host fetches it. What no option says is chosen by the worker, or stays as it was.

    With --max-workers, their number follows what they have to do, until --workers or `polyfleet scale` says how many.

    Another SOURCE, --model-name or worker's option is another revision: its workers come up one by one, and old ones go
    as they are ready. One that does not come up, or fails requests, is taken back: see `polyfleet rollout status`.

    With --check a worker that sees SOURCE reads its headers; the exit code is 1 where it fits no device.
    """
    from polyfleet.cli.commands.check import check
    from polyfleet.cli.fleet_client import open_fleet

    options = take_options(changes)
    if source:
        options = _chosen_here(source, fleet, changes, options)
    with open_fleet(fleet, fleet_token_file) as client:
        known = client.snapshot()
        wanted = new_deployment(name, source, known) if source else _known(known, name, fleet, options)
        wanted = changed(wanted, changes, options)
        if changes["check"]:
            check(client, wanted, as_json=as_json)
            return
        if changes["canary"]:
            share_out(wanted, changes["canary"])
        stored = client.deploy(wanted)
    alone = lacks_partner(known, stored)
    if as_json:
        print_json({"name": stored.name, "model": stored.model_name or stored.name, "workers": stored.workers})
    else:
        see = f"`{command_name()} workers` shows how they come up."
        out.print(f"{stored.name}: {stored.workers} worker(s) wanted. {see}", markup=False)
    if alone:
        err.print(alone, markup=False)


def _chosen_here(
    source: str, fleet: str, changes: dict[str, Any], options: dict[str, OptionValue]
) -> dict[str, OptionValue]:
    """The options, with what was chosen on this machine where its workers are the fleet's: they see its files."""
    if not _check_here(source, fleet, options):
        return options
    choice = Choice.read()
    changes["accelerators"] = choice.accelerators(changes["accelerators"])
    chosen = choice.options_beside(options, changes["accelerators"])
    say_chosen(options, chosen)
    return chosen


def _known(
    known: "pb.FleetSnapshot", name: str, fleet: str, options: Mapping[str, OptionValue]
) -> "pb.ModelDeployment":
    """The deployment of that name. Raises CliError where its model can't have the context that is asked for now."""
    wanted = known_deployment(known, name)
    if "context_length" in options:
        _check_here(wanted.source, fleet, options)
    return wanted


def _check_here(source: str, fleet: str, options: Mapping[str, OptionValue]) -> bool:
    """Whether the fleet is this machine's, whose files its workers see. Raises CliError for what they can't serve."""
    from polyfleet.cli.stack.settings import check_model
    from polyfleet.cli.state_folder import known_token

    if not known_token(fleet):
        return False
    check_model(source, options)
    return True


@click.command(epilog=examples("polyfleet scale smollm2 3"))
@click.argument("name", type=TEXT)
@click.argument("workers", type=click.IntRange(0, 1000))
@fleet_options
def scale(name: str, workers: int, fleet: str, fleet_token_file: Path | None) -> None:
    """Give deployment NAME so many WORKERS; none keeps it without any.

    Workers that are too many finish what they run. Those that find no room wait for it: `polyfleet workers` says why.
    """
    from polyfleet.cli.fleet_client import open_fleet

    with open_fleet(fleet, fleet_token_file) as client:
        wanted = known_deployment(client.snapshot(), name)
        before, wanted.workers = wanted.workers, workers
        by_load = wanted.HasField("autoscaling")
        wanted.ClearField("autoscaling")
        client.deploy(wanted)
    fixed = " Their number does not follow what they have to do any more." if by_load else ""
    out.print(f"{name}: {workers} worker(s) wanted, {before} before.{fixed}", markup=False)


def new_deployment(name: str, source: str, known: "pb.FleetSnapshot") -> "pb.ModelDeployment":
    """One worker that chooses everything itself; of a deployment that there is, all else as it was."""
    from polyfleet.v1 import fleet_pb2 as pb

    path = Path(source).expanduser()
    seen = str(path.resolve()) if path.exists() else source  # else it lies on the worker's host alone
    before = next((each for each in known.deployments if each.name == name), None)
    wanted = before or pb.ModelDeployment(name=name, workers=1, options=pb.WorkerOptions(dtype="auto"))
    wanted.source = seen
    return wanted


def lacks_partner(known: "pb.FleetSnapshot", stored: "pb.ModelDeployment") -> str:
    """That nobody is there for the other part of a deployment with a role, in a sentence; else empty."""
    from polyfleet.placement.fleet import Role
    from polyfleet.placement.proto import role_from_proto

    model, role = stored.model_name or stored.name, role_from_proto(stored.role)
    others = [each for each in (*known.deployments, *known.pools) if each.name != stored.name]
    roles = {role_from_proto(each.role) for each in others if (each.model_name or each.name) == model}
    by_hand = (each.info for each in known.workers if not each.info.deployment)
    roles |= {role_from_proto(each.role) for each in by_hand if each.intended_model == model}
    if role is Role.DECODE and Role.PREFILL not in roles:
        return f"Nothing of role prefill serves {model}: until something does, these workers compute their own prompts."
    if role is Role.PREFILL and roles <= {Role.PREFILL}:
        return f"Nothing else serves {model}: until something does, these workers decode, too."
    return ""


AIMS = ("min_workers", "max_workers", "queue_seconds", "kv_use", "idle_seconds", "down_seconds")


def scale_by_load(deployment: "pb.ModelDeployment", changes: dict[str, Any]) -> None:
    """Take over the aims that were given, or end autoscaling for a number. Raises CliError for both at once."""
    aims = {key: changes[key] for key in AIMS if changes[key] is not None}
    if changes["workers"] is not None:
        if aims:
            text = f"--workers sets the number itself: leave out --{next(iter(aims)).replace('_', '-')}, or --workers."
            raise CliError(text, ExitCode.BAD_INPUT)
        deployment.ClearField("autoscaling")
    elif aims:
        if not deployment.HasField("autoscaling"):
            if "max_workers" not in aims:
                raise CliError("How many workers at most? Say --max-workers, too.", ExitCode.BAD_INPUT)
            deployment.autoscaling.min_workers = 1
        for key, value in aims.items():
            setattr(deployment.autoscaling, key, value)


def share_out(wanted: "pb.ModelDeployment", percent: int) -> None:
    """Give the revision that `wanted` describes a part of the requests, and the present one the rest.

    Raises CliError where there is none yet.
    """
    if not wanted.revision:
        text = f"There is no deployment {wanted.name!r} yet whose requests --canary could share."
        raise CliError(text, ExitCode.BAD_INPUT)
    del wanted.traffic[:]
    wanted.traffic.add(revision=0, percent=percent)
    wanted.traffic.add(revision=wanted.stable_revision or wanted.revision, percent=100 - percent)


def known_deployment(snapshot: "pb.FleetSnapshot", name: str) -> "pb.ModelDeployment":
    """The deployment as the scheduler holds it. Raises CliError when there is none of that name."""
    known = {each.name: each for each in snapshot.deployments}
    if name not in known:
        there = f"; there are: {', '.join(known)}" if known else ""
        message = f"There is no deployment {name!r}{there}. `deploy` with its SOURCE makes one."
        raise CliError(message, ExitCode.BAD_INPUT)
    return known[name]


def changed(
    deployment: "pb.ModelDeployment", changes: dict[str, Any], options: dict[str, OptionValue]
) -> "pb.ModelDeployment":
    """The deployment with every flag that was given."""
    from polyfleet.placement.fleet import Role
    from polyfleet.placement.proto import role_to_proto

    for key in ("workers", "model_name"):
        if changes[key] is not None:
            setattr(deployment, key, changes[key])
    if changes["accelerators"]:
        deployment.accelerators[:] = changes["accelerators"]
    if changes["role"]:
        deployment.role = role_to_proto(Role(changes["role"]))
    scale_by_load(deployment, changes)
    for key in ("max_surge", "progress_seconds", "max_error_ratio"):
        if changes[key] is not None:
            setattr(deployment.rollout, key, changes[key])
    for key, value in options.items():
        setattr(deployment.options, key, value)
    return deployment

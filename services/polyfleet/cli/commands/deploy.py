"""`polyfleet deploy | scale`: make a deployment, or change one."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from polyfleet.cli.chosen import Choice, say_chosen
from polyfleet.cli.errors import CliError, ExitCode
from polyfleet.cli.options import ACCELERATOR_NAME, TEXT, examples, fleet_options, json_option
from polyfleet.cli.terminal.output import command_name, out, print_json
from polyfleet.process.flags import option_flags, take_options
from polyfleet.wire.options import OptionValue

if TYPE_CHECKING:
    from polyfleet.cli.fleet_client import FleetClient
    from polyfleet.v1 import fleet_pb2 as pb


@click.command(
    epilog=examples(
        "polyfleet deploy smollm2 ./SmolLM2-135M-Instruct.Q4_1.gguf --context-length 4096",
        "polyfleet deploy smollm2 --workers 3",
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
@option_flags()
@fleet_options
@json_option
def deploy(
    name: str, source: str | None, fleet: str, fleet_token_file: Path | None, as_json: bool, **changes: Any
) -> None:
    """Serve the model in SOURCE as NAME; without SOURCE, change the deployment of that name.

    SOURCE is a GGUF file or a Hugging Face folder, as the worker's host sees it. What no option says is chosen by the
    worker, or stays as it was. Other options than --workers replace the deployment's workers one by one.
    """
    from polyfleet.cli.fleet_client import open_fleet
    from polyfleet.cli.stack.settings import check_model
    from polyfleet.cli.stack.state_folder import known_token

    options = take_options(changes)
    if source and known_token(fleet):  # its workers are this machine's: they see its files
        check_model(source)
        choice = Choice.read()
        changes["accelerators"] = choice.accelerators(changes["accelerators"])
        stated, options = options, choice.options_beside(options, changes["accelerators"])
        say_chosen(stated, options)
    with open_fleet(fleet, fleet_token_file) as client:
        wanted = new_deployment(name, source) if source else known_deployment(client, name)
        stored = client.deploy(changed(wanted, changes, options))
    if as_json:
        print_json({"name": stored.name, "model": stored.model_name or stored.name, "workers": stored.workers})
    else:
        see = f"`{command_name()} workers` shows how they come up."
        out.print(f"{stored.name}: {stored.workers} worker(s) wanted. {see}", markup=False)


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
        wanted = known_deployment(client, name)
        before, wanted.workers = wanted.workers, workers
        client.deploy(wanted)
    out.print(f"{name}: {workers} worker(s) wanted, {before} before.", markup=False)


def new_deployment(name: str, source: str) -> "pb.ModelDeployment":
    """One worker that chooses everything itself."""
    from polyfleet.v1 import fleet_pb2 as pb

    path = Path(source).expanduser()
    seen = str(path.resolve()) if path.exists() else source  # else it lies on the worker's host alone
    return pb.ModelDeployment(name=name, source=seen, workers=1, options=pb.WorkerOptions(dtype="auto"))


def known_deployment(client: "FleetClient", name: str) -> "pb.ModelDeployment":
    """The deployment as the scheduler holds it. Raises CliError when there is none of that name."""
    known = {each.name: each for each in client.snapshot().deployments}
    if name not in known:
        message = f"There is no deployment {name!r} to change: name its SOURCE, or one of {', '.join(known) or 'none'}."
        raise CliError(message, ExitCode.BAD_INPUT)
    return known[name]


def changed(
    deployment: "pb.ModelDeployment", changes: dict[str, Any], options: dict[str, OptionValue]
) -> "pb.ModelDeployment":
    """The deployment with every flag that was given."""
    for key in ("workers", "model_name"):
        if changes[key] is not None:
            setattr(deployment, key, changes[key])
    if changes["accelerators"]:
        deployment.accelerators[:] = changes["accelerators"]
    for key, value in options.items():
        setattr(deployment.options, key, value)
    return deployment

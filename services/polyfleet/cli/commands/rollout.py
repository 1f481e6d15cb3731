"""`polyfleet deployments | rollout`: which deployments there are, and how one goes from a revision to another."""

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from polyfleet.cli.commands.deploy import known_deployment, lacks_partner
from polyfleet.cli.errors import CliError, ExitCode
from polyfleet.cli.options import TEXT, examples, fleet_options, json_option
from polyfleet.cli.terminal.output import command_name, out, print_json, print_table
from polyfleet.cli.words import role_name

if TYPE_CHECKING:
    from polyfleet.v1 import fleet_pb2 as pb


def ready_of(snapshot: "pb.FleetSnapshot", deployment: str, revision: int = 0) -> int:
    """Ready workers of a deployment, or of one of its revisions."""
    from polyfleet.v1 import fleet_pb2 as pb

    return sum(
        worker.info.deployment == deployment
        and worker.info.revision in ((revision,) if revision else (worker.info.revision,))
        and worker.status.state == pb.WORKER_STATE_READY
        for worker in snapshot.workers
    )


def rollout_state(wish: "pb.ModelDeployment") -> str:
    """Where a deployment stands between its revisions, for people."""
    from polyfleet.scheduler.deployments.pool_shares import taken_back
    from polyfleet.scheduler.revisions import newest_problem

    if not wish.revision:
        share = f": {wish.traffic_percent} % of {wish.model_name}'s requests" * wish.HasField("traffic_percent")
        return " ".join(filter(None, (f"pool of the chart{share}.", taken_back(wish))))
    if wish.traffic:
        shared = ", ".join(f"revision {each.revision} has {each.percent} %" for each in wish.traffic)
        state = f"shared out: {shared}"
    elif wish.revision == wish.stable_revision:
        state = f"revision {wish.revision}"
    else:
        before = f", from {wish.stable_revision}" if wish.stable_revision else ""
        state = f"revision {wish.revision} comes up{before}"
    return " ".join(filter(None, (f"{state}.", newest_problem(wish))))


def _aims(wish: "pb.ModelDeployment") -> dict[str, Any] | None:
    """The bounds and aims of the number of workers, without those left to the scheduler; None: it is fixed."""
    if not wish.HasField("autoscaling"):
        return None
    bounds = {"min_workers": wish.autoscaling.min_workers}
    return bounds | {field.name: value for field, value in wish.autoscaling.ListFields()}


def deployment_record(snapshot: "pb.FleetSnapshot", wish: "pb.ModelDeployment") -> dict[str, Any]:
    """One deployment for `--json`."""
    return {
        "name": wish.name,
        "model": wish.model_name or wish.name,
        "source": wish.source,
        "role": role_name(wish.role),
        "workers": wish.workers,
        "autoscaling": _aims(wish),
        "ready_workers": ready_of(snapshot, wish.name),
        "revision": wish.revision,
        "stable_revision": wish.stable_revision,
        "traffic": {str(each.revision): each.percent for each in wish.traffic},
        "traffic_percent": wish.traffic_percent if wish.HasField("traffic_percent") else None,
        "rollout": rollout_state(wish),
        "problem": wish.problem or lacks_partner(snapshot, wish),
    }


@click.command(epilog=examples("polyfleet deployments", "polyfleet deployments --json"))
@fleet_options
@json_option
def deployments(fleet: str, fleet_token_file: Path | None, as_json: bool) -> None:
    """List the deployments and the chart's pools: their workers, their revisions, and what is in their way."""
    from polyfleet.cli.fleet_client import open_fleet

    with open_fleet(fleet, fleet_token_file) as client:
        snapshot = client.snapshot()
    found = [deployment_record(snapshot, wish) for wish in (*snapshot.deployments, *snapshot.pools)]
    if as_json:
        print_json(found)
        return
    if not found:
        out.print(f"No deployments. `{command_name()} deploy NAME PATH` makes one.", markup=False)
        return
    rows = [
        (each["name"], each["model"], each["role"], _ready(each), each["rollout"], each["problem"] or "-")
        for each in found
    ]
    print_table(("DEPLOYMENT", "MODEL", "ROLE", "READY", "ROLLOUT", "PROBLEM"), rows)


def _ready(record: dict[str, Any]) -> str:
    text, aims = f"{record['ready_workers']} of {record['workers']}", record["autoscaling"]
    return f"{text} ({aims['min_workers']} to {aims['max_workers']})" if aims else text


@click.group()
def rollout() -> None:
    """How a deployment goes from one revision to another. `polyfleet deploy` begins one."""


def revision_records(snapshot: "pb.FleetSnapshot", wish: "pb.ModelDeployment") -> list[dict[str, Any]]:
    """Its revisions, the newest first."""
    shares = {each.revision: each.percent for each in wish.traffic} or {wish.revision: 100}
    return [
        {
            "revision": each.number,
            "percent": shares.get(each.number, 0),
            "ready_workers": ready_of(snapshot, wish.name, each.number),
            "stable": each.number == wish.stable_revision,
            "source": each.source,
            "options": {field.name: value for field, value in each.options.ListFields()},
            "created_unix_seconds": each.created_unix_seconds,
            "problem": each.problem,
        }
        for each in wish.revisions
    ]


def revision_row(record: dict[str, Any]) -> tuple[str, ...]:
    """One revision for people."""
    options = " ".join(f"{name}={value}" for name, value in record["options"].items())
    state = record["problem"] or ("stable" if record["stable"] else "-")
    made = datetime.fromtimestamp(record["created_unix_seconds"]).strftime("%Y-%m-%d %H:%M")
    ready = str(record["ready_workers"])
    return str(record["revision"]), f"{record['percent']} %", ready, record["source"], options or "-", made, state


@rollout.command(epilog=examples("polyfleet rollout status smollm2", "polyfleet rollout status smollm2 --json"))
@click.argument("name", type=TEXT)
@fleet_options
@json_option
def status(name: str, fleet: str, fleet_token_file: Path | None, as_json: bool) -> None:
    """Show the revisions of deployment NAME: what each serves, its share of new requests, its ready workers.

    One that was taken back says why.
    """
    from polyfleet.cli.fleet_client import open_fleet

    with open_fleet(fleet, fleet_token_file) as client:
        snapshot = client.snapshot()
        wish = known_deployment(snapshot, name)
    records = revision_records(snapshot, wish)
    if as_json:
        print_json({**deployment_record(snapshot, wish), "revisions": records})
        return
    ready = f"{ready_of(snapshot, name)} of {wish.workers} worker(s) ready"
    out.print(f"{name}: {ready}; {rollout_state(wish)} {wish.problem}".strip(), markup=False)
    columns = ("REVISION", "REQUESTS", "READY", "SOURCE", "OPTIONS", "MADE", "STATE")
    print_table(columns, [revision_row(each) for each in records])


@rollout.command(epilog=examples("polyfleet rollout undo smollm2", "polyfleet rollout undo smollm2 --to-revision 3"))
@click.argument("name", type=TEXT)
@click.option("--to-revision", type=click.IntRange(1), default=None, help="Which one.  [default: the one before]")
@fleet_options
def undo(name: str, to_revision: int | None, fleet: str, fleet_token_file: Path | None) -> None:
    """Go back to an earlier revision of deployment NAME, as it came: no stream is cut."""
    from polyfleet.cli.fleet_client import open_fleet

    with open_fleet(fleet, fleet_token_file) as client:
        wish = client.undo_rollout(name, to_revision or 0)
    out.print(f"{name} goes back to revision {wish.revision}: {wish.source}", markup=False)


@rollout.command(
    epilog=examples(
        "polyfleet rollout traffic smollm2 2=50 1=50", "polyfleet rollout traffic smollm2 2=100   # promote it"
    )
)
@click.argument("name", type=TEXT)
@click.argument("shares", metavar="REVISION=PERCENT…", nargs=-1, required=True, type=TEXT)
@fleet_options
def traffic(name: str, shares: tuple[str, ...], fleet: str, fleet_token_file: Path | None) -> None:
    """Share the new requests of deployment NAME out among its revisions; the percents add up to 100.

    Each revision with a share has its part of the workers, and one at least. 100 for one alone is that one from now on.
    A session (OpenAI's `user`, or the header x-session-id) keeps its revision.
    """
    from polyfleet.cli.fleet_client import open_fleet

    targets = [read_share(each) for each in shares]
    with open_fleet(fleet, fleet_token_file) as client:
        wish = known_deployment(client.snapshot(), name)
        del wish.traffic[:]
        for revision, percent in targets:
            wish.traffic.add(revision=revision, percent=percent)
        stored = client.deploy(wish)
    out.print(f"{name}: {rollout_state(stored)}", markup=False)


def read_share(text: str) -> tuple[int, int]:
    """REVISION=PERCENT. Raises CliError."""
    revision, _, percent = text.removesuffix("%").partition("=")
    if not (revision.isascii() and revision.isdigit() and percent.isascii() and percent.isdigit()):
        raise CliError(f"A share must be REVISION=PERCENT as in 2=10, not {text!r:.80}.", ExitCode.BAD_INPUT)
    if not 1 <= int(revision) < 2**32 or int(percent) > 100:
        problem = f"A share must have a revision from 1 on and 0 to 100 percent, not {text!r:.80}."
        raise CliError(problem, ExitCode.BAD_INPUT)
    return int(revision), int(percent)

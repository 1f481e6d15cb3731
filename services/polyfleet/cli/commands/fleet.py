"""`polyfleet workers | undeploy | drain`: what operators do with the fleet."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from polyfleet.cli.errors import CliError, ExitCode
from polyfleet.cli.options import examples, fleet_options, json_option
from polyfleet.cli.terminal.output import command_name, err, out, print_json, print_table
from polyfleet.cli.words import role_name, state_name

if TYPE_CHECKING:
    from polyfleet.v1 import fleet_pb2 as pb


QUARANTINED = "no new requests: its last report can't be true"
OUTVOTED = "no new requests: its weights or tokenizer are not those of most ready workers of its model"


def mark_unused(snapshot: "pb.FleetSnapshot") -> None:
    """Give ready workers the reason why they get no new requests: their reports make no sense, or other weights prevail
    among their model's.
    """
    from polyfleet.placement.filters import outvoted
    from polyfleet.placement.proto import snapshot_from_proto

    ids = outvoted(snapshot_from_proto(snapshot).workers)
    for worker in snapshot.workers:
        if worker.info.worker_id in ids:
            worker.status.reason = f"{OUTVOTED}. {worker.status.reason}".strip()
        if worker.quarantine:
            worker.status.reason = f"{QUARANTINED} ({worker.quarantine}). {worker.status.reason}".strip()


def worker_state(worker: "pb.FleetWorker") -> str:
    """State for people, with progress while loading and the reason when it is not well."""
    name = state_name(worker.status.state)
    if name == "loading":
        name += f" {worker.status.load_progress:.0%}"
    return f"{name}: {worker.status.reason}" if worker.status.reason else name


def worker_record(worker: "pb.FleetWorker") -> dict[str, Any]:
    """One worker for `--json`."""
    info, status = worker.info, worker.status
    return {
        "worker_id": info.worker_id,
        "deployment": info.deployment,
        "role": role_name(info.role),
        "model": info.model.name,
        "fingerprint": info.model.fingerprint,
        "accelerator": info.accelerator,
        "device": info.device_name,
        "host": info.host,
        "pid": info.pid,
        "address": info.address,
        "metrics_address": info.metrics_address,
        "state": state_name(status.state),
        "reason": status.reason,
        "load_progress": status.load_progress,
        "running_sequences": status.running_sequences,
        "waiting_sequences": status.waiting_sequences,
        "free_blocks": status.free_blocks,
        "num_blocks": info.model.num_blocks,
    }


def worker_row(worker: "pb.FleetWorker") -> tuple[str, ...]:
    """One worker for people."""
    info, status = worker.info, worker.status
    load = f"{status.running_sequences} running, {status.waiting_sequences} waiting"
    device = f"{info.accelerator} {info.device_name}".strip()
    named = info.worker_id, info.deployment or "-", role_name(info.role)
    return *named, worker_state(worker), load, device, info.host, str(info.pid)


@click.command(epilog=examples("polyfleet workers --json"))
@fleet_options
@json_option
def workers(fleet: str, fleet_token_file: Path | None, as_json: bool) -> None:
    """List the workers of the fleet and how they are doing."""
    from polyfleet.cli.fleet_client import open_fleet

    with open_fleet(fleet, fleet_token_file) as client:
        snapshot = client.snapshot()
    mark_unused(snapshot)
    found = snapshot.workers
    problems = [f"{each.name}: {each.problem}" for each in snapshot.deployments if each.problem]
    problems += [pool.problem for pool in snapshot.pools if pool.problem]
    if as_json:
        print_json([worker_record(worker) for worker in found])
    elif found:
        columns = ("WORKER", "DEPLOYMENT", "ROLE", "STATE", "LOAD", "DEVICE", "HOST", "PID")
        print_table(columns, [worker_row(worker) for worker in found])
    elif not problems:
        out.print(f"No workers. `{command_name()} deploy NAME PATH` starts one.", markup=False)
    for problem in problems:
        (err if as_json else out).print(problem, markup=False)


@click.command(epilog=examples("polyfleet undeploy smollm2"))
@click.argument("name")
@fleet_options
def undeploy(name: str, fleet: str, fleet_token_file: Path | None) -> None:
    """Drain and stop the workers of deployment NAME, and forget it."""
    from polyfleet.cli.fleet_client import open_fleet

    with open_fleet(fleet, fleet_token_file) as client:
        client.undeploy(name)
    out.print(f"{name} is going away; its workers finish what they run.")


@click.command(epilog=examples("polyfleet drain worker-0f3a9c2b7d11"))
@click.argument("worker_id")
@fleet_options
def drain(worker_id: str, fleet: str, fleet_token_file: Path | None) -> None:
    """Let worker WORKER_ID finish what it runs, then stop it; its deployment starts another."""
    from polyfleet.cli.fleet_client import open_fleet

    if not worker_id:
        raise CliError(f"The worker's id is empty: `{command_name()} workers` lists them.", ExitCode.BAD_INPUT)
    with open_fleet(fleet, fleet_token_file) as client:
        client.drain(worker_id)
    out.print(f"{worker_id} takes no new requests and stops once it has finished.")

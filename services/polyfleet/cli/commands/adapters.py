"""`polyfleet adapters`: list, add and drop the LoRA adapters of deployments."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from polyfleet.cli.options import TEXT, examples, fleet_options, json_option
from polyfleet.cli.terminal.output import command_name, out, print_json, print_table

if TYPE_CHECKING:
    from polyfleet.v1 import fleet_pb2 as pb


@click.group()
def adapters() -> None:
    """LoRA adapters: served under names of their own by the workers of the model that they adapt."""


def adapter_records(snapshot: "pb.FleetSnapshot") -> list[dict[str, Any]]:
    """Each adapter of each deployment or worker that came with some, and how many of its workers have it."""
    owners: dict[tuple[str, str], dict[str, Any]] = {}

    def record(owner: str, adapter: "pb.Adapter") -> dict[str, Any]:
        begun = {"name": adapter.name, "deployment": owner, "source": adapter.source, "rank": 0, "fingerprint": ""}
        return owners.setdefault((owner, adapter.name), {**begun, "workers": 0, "problem": ""})

    for wish in snapshot.deployments:
        for adapter in wish.adapters:
            record(wish.name, adapter)
    for worker in snapshot.workers:
        for adapter in worker.info.model.adapters:
            found = record(worker.info.deployment or worker.info.worker_id, adapter)
            found["problem"] = found["problem"] or adapter.problem
            if adapter.fingerprint:
                found |= {"rank": adapter.rank, "fingerprint": adapter.fingerprint, "workers": found["workers"] + 1}
    return [owners[key] for key in sorted(owners)]


@adapters.command("list", epilog=examples("polyfleet adapters list --json"))
@fleet_options
@json_option
def list_adapters(fleet: str, fleet_token_file: Path | None, as_json: bool) -> None:
    """List the adapters and how many workers have each."""
    from polyfleet.cli.fleet_client import open_fleet

    with open_fleet(fleet, fleet_token_file) as client:
        found = adapter_records(client.snapshot())
    if as_json:
        print_json(found)
    elif found:
        columns = ("ADAPTER", "DEPLOYMENT", "WORKERS", "RANK", "SOURCE", "PROBLEM")
        keys = ("name", "deployment", "workers", "rank", "source", "problem")
        print_table(columns, [tuple(str(each[key] or "-") for key in keys) for each in found])
    else:
        out.print(f"No adapters. `{command_name()} adapters add NAME PATH` loads one.", markup=False)


@adapters.command(epilog=examples("polyfleet adapters add support ./adapters/support --deployment smollm2"))
@click.argument("name", type=TEXT)
@click.argument("source", type=TEXT)
@click.option("--deployment", type=TEXT, help="Whose model it adapts.  [default: the only one]")
@fleet_options
def add(name: str, source: str, deployment: str | None, fleet: str, fleet_token_file: Path | None) -> None:
    """Serve the PEFT folder SOURCE, as the workers' hosts see it, as the model NAME.

    The deployment must have been made with --max-adapters over 0.
    """
    from polyfleet.cli.fleet_client import open_fleet

    path = Path(source).expanduser()
    seen = str(path.resolve()) if path.exists() else source  # else it lies on the workers' hosts alone
    with open_fleet(fleet, fleet_token_file) as client:
        loaded = client.add_adapter(deployment or "", name, seen)
    out.print(f"{loaded.name}: rank {loaded.rank}, served as a model of that name.", markup=False)


@adapters.command(epilog=examples("polyfleet adapters drop support"))
@click.argument("name", type=TEXT)
@click.option("--deployment", type=TEXT, help="Whose adapter it is.  [default: the only one that has it]")
@fleet_options
def drop(name: str, deployment: str | None, fleet: str, fleet_token_file: Path | None) -> None:
    """Serve the adapter NAME no more; requests that run with it end as they would have."""
    from polyfleet.cli.fleet_client import open_fleet

    with open_fleet(fleet, fleet_token_file) as client:
        client.drop_adapter(deployment or "", name)
    out.print(f"{name} takes no new requests.", markup=False)

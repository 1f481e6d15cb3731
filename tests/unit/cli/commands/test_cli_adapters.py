"""`polyfleet adapters` against a scripted Fleet; and that no command refuses what it takes where nothing is given."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import grpc
import pytest
from click.testing import CliRunner

from polyfleet.cli.main import cli
from polyfleet.v1 import fleet_pb2 as pb
from polyfleet.v1 import fleet_pb2_grpc


class Fleet(fleet_pb2_grpc.FleetServicer):  # type: ignore[misc]
    """Takes every adapter; `asked` has what came."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def AddAdapter(self, request: pb.AddAdapterRequest, context: Any) -> pb.AddAdapterResponse:
        self.asked.append(request)
        return pb.AddAdapterResponse(adapter=pb.Adapter(name=request.name, source=request.source, rank=8))

    def DropAdapter(self, request: pb.DropAdapterRequest, context: Any) -> pb.DropAdapterResponse:
        self.asked.append(request)
        return pb.DropAdapterResponse()


@contextmanager
def serving(fleet: Fleet) -> Iterator[str]:
    """Its address."""
    server = grpc.server(ThreadPoolExecutor(2))
    fleet_pb2_grpc.add_FleetServicer_to_server(fleet, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(None)


@pytest.mark.parametrize("deployment", ["", "d"])
def test_adapters_are_added_and_dropped_with_a_deployment_and_without(deployment: str, tmp_path: Path) -> None:
    named, fleet = ["--deployment", deployment] if deployment else [], Fleet()
    with serving(fleet) as address:
        for command in (["add", "a", str(tmp_path)], ["drop", "a"]):
            done = CliRunner().invoke(cli, ["adapters", *command, *named, "--fleet", address])
            assert done.exit_code == 0, done.output
    added, dropped = fleet.asked
    assert (added.deployment, added.name, added.source) == (deployment, "a", str(tmp_path.resolve()))
    assert (dropped.deployment, dropped.name) == (deployment, "a")


def commands(group: click.Group) -> Iterator[click.Command]:
    for command in group.commands.values():
        yield command
        if isinstance(command, click.Group):
            yield from commands(command)


def test_no_option_refuses_its_own_default() -> None:
    for command in commands(cli):
        context = click.Context(command, info_name=command.name)
        for option in command.params:
            if isinstance(value := option.get_default(context), str):
                option.type_cast_value(context, value)

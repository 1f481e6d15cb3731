"""Flags that commands of several packages take."""

import click
import pytest
from click.testing import CliRunner

from polyfleet.process.channels import fleet_tls
from polyfleet.process.flags import adapter_flag


@click.command()
@adapter_flag()
def command(adapter: tuple[tuple[str, str], ...]) -> None:
    click.echo(repr(adapter))


def test_an_adapter_is_a_name_and_a_path_that_may_hold_any_sign() -> None:
    result = CliRunner().invoke(command, ["--adapter", "one=./a", "--adapter", "two=b=c"])
    assert result.output == "(('one', './a'), ('two', 'b=c'))\n"


@pytest.mark.parametrize("value", ["", "one", "=./a", "one="])
def test_half_of_an_adapter_is_refused(value: str) -> None:
    result = CliRunner().invoke(command, ["--adapter", value])
    assert result.exit_code == 2
    assert f"{value!r} is not NAME=PATH." in result.output


@pytest.mark.parametrize("folder", [None, ""])
def test_no_folder_means_no_certificates(folder: str | None) -> None:
    assert fleet_tls(folder) is None

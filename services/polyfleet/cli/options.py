"""Options that several commands share, and what they open."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from polyfleet.cli.errors import CliError, ExitCode, calling
from polyfleet.process.config import ConfigError
from polyfleet.process.listening import is_port
from polyfleet.process.unreached import roots_in
from polyfleet.wire.auth import AuthSetupError, read_token
from polyfleet.wire.limits import FieldError, check_accelerator

if TYPE_CHECKING:
    from polyfleet.client import Client

_F = TypeVar("_F", bound=Callable[..., Any])
DEFAULT_GATEWAY = "127.0.0.1:50051"
DEFAULT_FLEET = "127.0.0.1:50052"
TLS_DIR = "--fleet-tls-dir"


class GivenPath(click.Path):
    """click's Path lets an empty one pass, which would mean the working folder; this one does not."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path. Fails for an empty one."""
        if str(value) == "":
            self.fail(EMPTY, param, ctx)
        return super().convert(value, param, ctx)


class GivenText(click.ParamType):  # type: ignore[type-arg]  # generic in newer clicks only
    """Text of at least one character: `--model "$UNSET"` is a mistake, and no wish for the default."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The text. Fails for an empty or blank one."""
        if not str(value).strip():
            self.fail(EMPTY, param, ctx)
        return str(value)


class Accelerator(GivenText):
    """An accelerator's name, of whatever vendor."""

    name = "accelerator"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The name, if it may be one."""
        text = super().convert(value, param, ctx)
        try:
            check_accelerator("it", text)
        except FieldError as error:
            self.fail(f"{error.problem}.", param, ctx)
        return text


EMPTY = "it is empty; leave the option out for its default."
FILE = GivenPath(path_type=Path, dir_okay=False)
TEXT = GivenText()
ACCELERATOR_NAME = Accelerator()


model_option = click.option("--model", type=TEXT, metavar="NAME", help="Served name; the only model when there is one.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")


def examples(*commands: str) -> str:
    """The end of a command's help."""
    title = "Example:" if len(commands) == 1 else "Examples:"
    return "\b\n" + "\n".join((title, *(f"  {command}" for command in commands)))  # \b: click keeps the lines


@dataclass(frozen=True, slots=True)
class Gateway:
    """Where the gateway is and how to reach it."""

    address: str
    api_key_file: Path | None
    tls: bool
    ca_file: Path | None

    @contextmanager
    def client(self) -> "Iterator[Client]":
        """A client of it; failures of its calls become CliErrors."""
        from polyfleet.client import Client, Tls

        check_address(self.address)
        settings: Tls | bool = Tls(ca_file=self.ca_file) if self.ca_file else self.tls
        try:
            if self.ca_file:
                roots_in(self.ca_file)
        except ConfigError as error:
            raise CliError(str(error), ExitCode.BAD_INPUT) from None
        key = read_secret(self.api_key_file, "API key")
        with calling(self.address), Client(self.address, api_key=key, tls=settings) as client:
            yield client


def gateway_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options of a command that calls a gateway, which it gets as `gateway: Gateway`."""

    @wraps(command)
    def gathered(*, gateway: str, api_key_file: Path | None, tls: bool, ca_file: Path | None, **others: Any) -> Any:
        return command(gateway=Gateway(gateway, api_key_file, tls, ca_file), **others)

    for option in (
        click.option("--ca-file", type=FILE, help="PEM roots to trust; given: TLS."),
        click.option("--tls", is_flag=True, help="Use TLS with the system's roots."),
        click.option(
            "--api-key-file", type=FILE, envvar="POLYFLEET_API_KEY_FILE", help="File whose first line is the API key."
        ),
        click.option(
            "--gateway",
            default=DEFAULT_GATEWAY,
            envvar="POLYFLEET_GATEWAY",
            show_default=True,
            metavar="HOST:PORT",
            help="gRPC address of the gateway.",
        ),
    ):
        gathered = option(gathered)
    return gathered


def fleet_options(command: _F) -> _F:
    """Where the scheduler's Fleet service is and how to reach it."""
    for option in (
        click.option(
            TLS_DIR,
            type=GivenPath(path_type=Path, file_okay=False),
            envvar="POLYFLEET_FLEET_TLS_DIR",
            expose_value=False,
            callback=lambda context, _, folder: context.meta.__setitem__(TLS_DIR, folder),
            help="Folder with tls.crt, tls.key, ca.crt of role operator, where the fleet's parts speak TLS.",
        ),
        click.option(
            "--fleet-token-file",
            type=FILE,
            envvar="POLYFLEET_FLEET_TOKEN_FILE",
            help="First line: the fleet token or an operator's key.  [default: the token of your `polyfleet serve`]",
        ),
        click.option(
            "--fleet",
            default=DEFAULT_FLEET,
            envvar="POLYFLEET_FLEET",
            show_default=True,
            metavar="HOST:PORT",
            help="Address of the scheduler.",
        ),
    ):
        command = option(command)
    return command


def chosen_tls_dir() -> Path | None:
    """What `fleet_options` took for the command that runs."""
    context = click.get_current_context(silent=True)
    return context.meta.get(TLS_DIR) if context else None


def read_secret(path: Path | None, what: str) -> str | None:
    """The first line of a file that holds a secret; None without a file."""
    try:
        return None if path is None else read_token(path, what)
    except AuthSetupError as error:
        raise CliError(str(error), ExitCode.BAD_INPUT) from None


def read_text(text: str | None, what: str) -> str:
    """The text that was given, or stdin's for `-` and for None. Raises CliError when it is empty."""
    if text is None and sys.stdin.isatty():
        raise click.UsageError(f"{what} is missing: give TEXT, or pipe it in.")
    found = sys.stdin.read() if text in (None, "-") else text
    if not found:
        raise CliError(f"{what} is empty: give at least one character.", ExitCode.BAD_INPUT)
    return found


def check_address(address: str) -> None:
    """Raise CliError unless `address` reads `host:port`."""
    host, _, port = address.rpartition(":")  # the host may be a gRPC name: dns:///gateway
    if not host or not is_port(port, lowest=1):
        raise CliError(f"{address!r} is no address: write host:port, such as {DEFAULT_GATEWAY}.", ExitCode.BAD_INPUT)

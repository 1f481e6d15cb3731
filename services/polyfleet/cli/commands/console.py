"""`polyfleet console`: the fleet, its models and a chat in a browser."""

from pathlib import Path

import click

from polyfleet.cli.errors import CliError, ExitCode
from polyfleet.cli.options import DEFAULT_GATEWAY, FILE, TEXT, check_address, chosen_tls_dir, examples, fleet_options
from polyfleet.cli.state_folder import known_token
from polyfleet.cli.terminal.output import err
from polyfleet.process.config import ConfigError
from polyfleet.wire.auth import AuthSetupError

LISTEN = "127.0.0.1:8080"


@click.command(
    epilog=examples(
        "polyfleet console",
        "polyfleet console --listen 0.0.0.0:8080 --keys-file keys.yaml --fleet 10.0.0.1:50052 --gateway 10.0.0.1:50051",
    )
)
@click.option("--listen", type=TEXT, default=LISTEN, show_default=True, metavar="HOST:PORT", help="Of the pages.")
@click.option(
    "--gateway",
    default=DEFAULT_GATEWAY,
    show_default=True,
    metavar="HOST:PORT",
    help="The gateway's gRPC API, for chats.",
)
@click.option("--keys-file", type=FILE, help="Keys of callers, the gateway's: visitors sign in with one.")
@fleet_options
def console(listen: str, gateway: str, keys_file: Path | None, fleet: str, fleet_token_file: Path | None) -> None:
    """Serve web pages that show the fleet and change it, with a chat, until Ctrl-C.

    Without keys they are open on this machine alone. `python -m polyfleet.console` takes the configuration file.
    """
    from polyfleet.console.command import run

    check_address(fleet)
    token_file, tls_dir = fleet_token_file or known_token(fleet), chosen_tls_dir()
    paths = {"keys_file": keys_file, "fleet_token_file": token_file, "fleet_tls_dir": tls_dir}
    given = {name: str(path) for name, path in paths.items() if path}
    options = {"listen": listen, "gateway": gateway, "fleet": fleet, "log_level": "warning", **given}
    said = f"The console is at http://{listen}; Ctrl-C ends it."
    try:
        run(None, options, lambda: err.print(said, markup=False))
    except (ConfigError, AuthSetupError) as error:
        raise CliError(str(error), ExitCode.BAD_INPUT) from None

"""The command line of `python -m polyfleet.console`."""

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from polyfleet.console.config import ConsoleConfig, load_config
from polyfleet.process.config import CANNOT_START, ConfigError
from polyfleet.process.logs import LEVEL_VARIABLE, LEVELS, set_up_logging
from polyfleet.process.signals import ignore_hangups, stopping
from polyfleet.wire.auth import FLEET_TOKEN_FILE, AuthSetupError

EPILOG = """\b
Examples:
  python -m polyfleet.console
      serves http://127.0.0.1:8080 for the fleet of 127.0.0.1:50052 and the gateway at 127.0.0.1:50051
  python -m polyfleet.console --listen 0.0.0.0:8080 --fleet scheduler:50052 --gateway gateway:50051 \\
      --keys-file keys.yaml --tls-cert tls.crt --tls-key tls.key

SIGTERM, SIGHUP or Ctrl-C ends it. Exit status: 0 well, 2 can't start.
"""


@click.command(epilog=EPILOG, context_settings={"max_content_width": 110})
@click.option("--config", type=click.Path(path_type=Path), help="YAML file; its section `console` holds the options.")
@click.option("--listen", metavar="HOST:PORT", help="Of the pages.  [default: 127.0.0.1:8080]")
@click.option("--fleet", metavar="HOST:PORT", help="The scheduler's Fleet service.  [default: 127.0.0.1:50052]")
@click.option(
    "--fleet-token-file",
    help=f"First line: the fleet's token, or an operator's key.  [default: ${FLEET_TOKEN_FILE}]",
)
@click.option(
    "--fleet-tls-dir",
    help="Folder with tls.crt, tls.key, ca.crt of role operator, where the fleet's parts speak TLS to each other.",
)
@click.option("--gateway", metavar="HOST:PORT", help="The gateway's gRPC API.  [default: 127.0.0.1:50051]")
@click.option("--gateway-tls", is_flag=True, default=None, help="Speak TLS to the gateway.")
@click.option("--gateway-ca", help="PEM roots that its certificate must come from.")
@click.option("--keys-file", help="Keys of callers, as `polyfleet keys create` writes it; the gateway's.")
@click.option("--insecure-no-keys", is_flag=True, default=None, help="Let anybody in, beyond loopback too.")
@click.option("--tls-cert", help="PEM certificate chain of the pages.")
@click.option("--tls-key", help="Its PEM private key.")
@click.option("--root-path", metavar="/PREFIX", help="Path that a proxy serves it under.")
@click.option(
    "--log-level",
    type=click.Choice(LEVELS, case_sensitive=False),
    envvar=LEVEL_VARIABLE,
    show_envvar=True,
    help="[default: info]",
)
def main(config: Path | None, **overrides: Any) -> None:
    """Run the console: the fleet in a browser."""
    try:
        run(config, overrides)
    except (ConfigError, AuthSetupError) as error:
        click.echo(error, err=True)
        sys.exit(CANNOT_START)


def run(config: Path | None, overrides: dict[str, Any], listens: Callable[[], None] = lambda: None) -> None:
    """Serve as the file says, with `overrides` that are not None, until a signal; `listens` is called once it does.

    Raises ConfigError and AuthSetupError when it can't.
    """
    settings = load_config(config, overrides)
    set_up_logging(settings.log_level, process="console")
    asyncio.run(serve(settings, listens))


async def serve(config: ConsoleConfig, listens: Callable[[], None]) -> None:
    """Serve until SIGTERM, SIGINT or SIGHUP."""
    from polyfleet.console.server import Console

    told = asyncio.Event()
    for number in stopping():
        asyncio.get_running_loop().add_signal_handler(number, told.set)
    console = Console(config)
    await console.start()
    listens()
    await told.wait()
    ignore_hangups()
    await console.stop()

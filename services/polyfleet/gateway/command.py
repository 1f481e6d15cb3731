"""The command line of `python -m polyfleet.gateway`."""

import asyncio
import gc
import os
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from polyfleet.gateway.config import GatewayConfig, load_config
from polyfleet.process.config import CANNOT_START, ConfigError
from polyfleet.process.logs import LEVEL_VARIABLE, LEVELS, set_up_logging
from polyfleet.process.signals import ignore_hangups, stopping
from polyfleet.process.tasks import end
from polyfleet.text.answer.formats import FORMATS
from polyfleet.wire.auth import FLEET_TOKEN_FILE, AuthSetupError

STDIN = 0
EPILOG = """\b
Examples:
  python -m polyfleet.gateway
      serves on 127.0.0.1:50051 (gRPC), 127.0.0.1:8000 (HTTP) and 127.0.0.1:9101 (metrics) for the fleet of
      127.0.0.1:50052
  python -m polyfleet.gateway --grpc-listen 0.0.0.0:50051 --http-listen 0.0.0.0:8000 --fleet scheduler:50052 \\
      --keys-file keys.yaml --tls-cert tls.crt --tls-key tls.key

With --processes, SIGUSR2 to the first one puts new processes in the place of the others, one after another.
SIGTERM, SIGHUP or Ctrl-C drains: not ready, running requests finish, then it ends. Exit status: 0 well, 2 can't start.
"""


@click.command(epilog=EPILOG, context_settings={"max_content_width": 110})
@click.option("--config", type=click.Path(path_type=Path), help="YAML file; its section `gateway` holds the options.")
@click.option("--grpc-listen", metavar="HOST:PORT", help="Of the gRPC API.  [default: 127.0.0.1:50051]")
@click.option("--http-listen", metavar="HOST:PORT", help="Of the OpenAI API.  [default: 127.0.0.1:8000]")
@click.option("--metrics-listen", metavar="HOST:PORT", help="Of /metrics, without keys.  [default: 127.0.0.1:9101]")
@click.option("--processes", type=click.IntRange(1, 64), help="That serve side by side behind the ports.  [default: 1]")
@click.option("--fleet", metavar="HOST:PORT", help="The scheduler's Fleet service.  [default: 127.0.0.1:50052]")
@click.option("--fleet-token-file", help=f"First line: the fleet's token.  [default: ${FLEET_TOKEN_FILE}]")
@click.option(
    "--fleet-tls-dir",
    help="Folder with tls.crt, tls.key, ca.crt of role gateway, where the fleet's parts speak TLS to each other.",
)
@click.option("--fleet-keys-file", help="Hashes of the keys that the fleet's parts show, where each has its own.")
@click.option(
    "--peer",
    "peers",
    multiple=True,
    metavar="HOST:PORT",
    callback=lambda _context, _option, given: given or None,
    help="Another gateway's --peer-listen, asked while the scheduler is away; all of a name's addresses; repeatable.",
)
@click.option("--peer-listen", metavar="HOST:PORT", help="Where other gateways ask this one.  [default: nowhere]")
@click.option("--keys-file", help="Keys of callers, as `polyfleet keys create` writes it.")
@click.option("--insecure-no-keys", is_flag=True, default=None, help="Let anybody in, beyond loopback too.")
@click.option("--tls-cert", help="PEM certificate chain, for gRPC and the OpenAI API.")
@click.option("--tls-key", help="Its PEM private key.")
@click.option(
    "--cors-origin",
    "cors_origins",
    multiple=True,
    metavar="ORIGIN",
    callback=lambda _context, _option, given: given or None,
    help="Whose web pages may call the HTTP API: https://app.example, or * for anybody's; may be repeated.",
)
@click.option(
    "--image-host",
    "image_hosts",
    multiple=True,
    metavar="HOST",
    callback=lambda _context, _option, given: given or None,
    help="Whence images are fetched by their URLs: images.example.com, *.example.com, or "
    "http://minio:9000=10.0.0.0/8, which may have addresses in that network; may be repeated.",
)
@click.option(
    "--allow-special-tokens-in-content",
    is_flag=True,
    default=None,
    help="Let what a chat's contents spell become control tokens.",
)
@click.option(
    "--tool-parser",
    type=click.Choice(["auto", "none", *FORMATS]),
    help="How models write calls of tools.  [default: auto, as each one's chat template shows]",
)
@click.option(
    "--generation-config",
    type=click.Choice(["auto", "none"]),
    help="Whether a model's own sampling defaults hold for what requests leave out.  [default: auto]",
)
@click.option(
    "--placement",
    multiple=True,
    metavar="NAME=VALUE",
    help="How workers are chosen, by the names of `gateway.placement`; may be repeated.",
)
@click.option(
    "--log-level",
    type=click.Choice(LEVELS, case_sensitive=False),
    envvar=LEVEL_VARIABLE,
    show_envvar=True,
    help="[default: info]",
)
@click.option(
    "--fds",
    type=int,
    nargs=3,
    hidden=True,
    help="Of one of several processes: the first is told its metrics port when it listens, over the others come "
    "connections of gRPC and of HTTP.",
)
def main(config: Path | None, fds: tuple[int, int, int] | None, **overrides: Any) -> None:
    """Run the gateway: the front door of a fleet."""
    try:
        settings = load_config(config, overrides)
        set_up_logging(settings.log_level, process="gateway")
        if settings.processes > 1 and fds is None:
            from polyfleet.gateway.processes.run import run

            asyncio.run(run(settings, sys.argv[1:]))
        else:
            asyncio.run(serve(settings, fds))
    except (ConfigError, AuthSetupError) as error:
        click.echo(error, err=True)
        sys.exit(CANNOT_START)


async def serve(config: GatewayConfig, fds: tuple[int, int, int] | None = None) -> None:
    """Serve until SIGTERM, SIGINT or SIGHUP, then drain; a second one of the first two cuts the draining short.

    One of several processes tells the first of `fds` its metrics port, and at the end its metrics; it drains when its
    standard input ends, too. The others are its ends of the channels by which it gets connections.
    """
    from polyfleet.gateway.http.monitoring import metrics_text
    from polyfleet.gateway.ports.handed import Handed
    from polyfleet.gateway.server import CallersPorts, Gateway

    told = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in stopping():
        loop.add_signal_handler(number, told.set)
    handed = CallersPorts(*(Handed(socket.socket(fileno=each)) for each in fds[1:])) if fds else None
    gateway = Gateway(config, handed)
    await gateway.start()
    if fds:
        os.write(fds[0], f"{config.metrics_listen.rpartition(':')[0]}:{gateway.monitoring.port}\n".encode())
        loop.add_reader(STDIN, _when_it_ends, loop, told.set)
    gc.freeze()  # what is there now stays: to look through it each time would hold the event loop for 40 ms
    await told.wait()
    told.clear()
    ignore_hangups()
    draining, again = asyncio.create_task(gateway.drain()), asyncio.create_task(told.wait())
    await asyncio.wait((draining, again), return_when=asyncio.FIRST_COMPLETED)
    await end(draining, again)
    await gateway.stop()
    if fds:
        with suppress(OSError), open(fds[0], "wb") as first:
            first.write(metrics_text(gateway.metrics))


def _when_it_ends(loop: asyncio.AbstractEventLoop, tell: Callable[[], None]) -> None:
    """Standard input can be read: nothing is ever written there."""
    if not os.read(STDIN, 1):
        loop.remove_reader(STDIN)
        tell()

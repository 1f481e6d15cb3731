"""The `polyfleet` command."""

import errno
import os
import sys

import click

from polyfleet.cli.adapters import adapters
from polyfleet.cli.backends import backends, conformance
from polyfleet.cli.benchmark import benchmark
from polyfleet.cli.chat import chat
from polyfleet.cli.config_commands import config
from polyfleet.cli.deploy import deploy, scale
from polyfleet.cli.embed import embed
from polyfleet.cli.errors import ExitCode
from polyfleet.cli.explain import explain
from polyfleet.cli.fleet import drain, undeploy, workers
from polyfleet.cli.generate import generate
from polyfleet.cli.info import info
from polyfleet.cli.inspect import inspect
from polyfleet.cli.keys import keys
from polyfleet.cli.models import models
from polyfleet.cli.quantize import quantize
from polyfleet.cli.serve import serve
from polyfleet.cli.simulate import simulate
from polyfleet.cli.simulate_workers import simulate_workers
from polyfleet.cli.tokenize import tokenize
from polyfleet.cli.usage import usage

EXIT_CODES = (
    "Exit codes: 0 done; 1 tried and failed; 2 bad argument, file or field; 3 not reachable or not now; "
    "4 key or token refused; 130 interrupted."
)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120}, epilog=EXIT_CODES)
@click.version_option(package_name="polyfleet", message="%(version)s")
def cli() -> None:
    """One LLM endpoint over every accelerator an organisation owns.

    `polyfleet serve` starts everything on this machine; the other commands talk to what runs.
    """


for command in (
    serve,
    chat,
    generate,
    embed,
    tokenize,
    explain,
    models,
    info,
    inspect,
    workers,
    deploy,
    scale,
    undeploy,
    drain,
    adapters,
    keys,
    usage,
    config,
    backends,
    conformance,
    quantize,
    simulate,
    simulate_workers,
):
    cli.add_command(command)
backends.add_command(benchmark)


def main() -> None:
    """Entry point; Ctrl-C ends any command without a stack trace."""
    try:
        code = cli.main(standalone_mode=False)
    except click.exceptions.Abort:
        sys.exit(ExitCode.INTERRUPTED)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except BrokenPipeError:  # the reader has gone, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(ExitCode.FAILED)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        click.echo(f"Error: {error.filename or 'the output'} can't be written: {error.strerror}.", err=True)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(ExitCode.FAILED)
    sys.exit(code if isinstance(code, int) else ExitCode.OK)

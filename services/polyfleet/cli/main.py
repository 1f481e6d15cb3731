"""The `polyfleet` command."""

import errno
import os
import sys

import click

from polyfleet.cli.commands.adapters import adapters
from polyfleet.cli.commands.agent import agent
from polyfleet.cli.commands.backends import backends, conformance
from polyfleet.cli.commands.bench import bench
from polyfleet.cli.commands.benchmark import benchmark
from polyfleet.cli.commands.chat import chat
from polyfleet.cli.commands.config import config
from polyfleet.cli.commands.console import console
from polyfleet.cli.commands.deploy import deploy, scale
from polyfleet.cli.commands.embed import embed
from polyfleet.cli.commands.explain import explain
from polyfleet.cli.commands.fleet import drain, undeploy, workers
from polyfleet.cli.commands.generate import generate
from polyfleet.cli.commands.info import info
from polyfleet.cli.commands.inspect import inspect
from polyfleet.cli.commands.keys import keys
from polyfleet.cli.commands.models import models
from polyfleet.cli.commands.operations import devices, logs, requests
from polyfleet.cli.commands.quantize import quantize
from polyfleet.cli.commands.rerank import rerank
from polyfleet.cli.commands.rollout import deployments, rollout
from polyfleet.cli.commands.serve import serve
from polyfleet.cli.commands.simulate import simulate
from polyfleet.cli.commands.simulate_workers import simulate_workers
from polyfleet.cli.commands.tokenize import tokenize
from polyfleet.cli.commands.usage import usage
from polyfleet.cli.errors import ExitCode

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
    console,
    chat,
    generate,
    embed,
    rerank,
    tokenize,
    explain,
    models,
    info,
    inspect,
    workers,
    deployments,
    devices,
    requests,
    logs,
    deploy,
    scale,
    rollout,
    undeploy,
    drain,
    agent,
    adapters,
    keys,
    usage,
    bench,
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

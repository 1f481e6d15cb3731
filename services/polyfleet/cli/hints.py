"""What a ready stack prints: its endpoints and calls to copy."""

import shlex
import shutil
import sys
from pathlib import Path

from polyfleet.cli.settings import ServeSettings

PYTHON = """\
from polyfleet.client import Client
with Client("{grpc}") as client:
    for delta in client.stream(messages=[{{"role": "user", "content": "Hello!"}}]):
        print(delta.text, end="", flush=True)"""

CURL = """\
curl -N http://{http}/v1/chat/completions -H 'Content-Type: application/json' -d \\
  '{{"model": "{model}", "messages": [{{"role": "user", "content": "Hello!"}}], "stream": true}}'"""

COMMAND = "{polyfleet} chat --gateway {grpc}"


def endpoints(settings: ServeSettings) -> str:
    """Where everything listens, one line each."""
    gateway_metrics, metrics = settings.metrics_addresses
    return "\n".join(
        (
            f"gRPC     {settings.grpc_address}   polyfleet.v1.Inference",
            f"HTTP     http://{settings.http_address}/v1   OpenAI-compatible; /healthz /readyz",
            f"Fleet    {settings.fleet_address}   for `polyfleet workers` and `polyfleet deploy`",
            f"Metrics  http://{gateway_metrics}/metrics   the gateway's",
            f"         http://{metrics}/metrics   the scheduler's; /targets: where the workers' are",
            f"State    {settings.state_dir}",
        )
    )


def calls(settings: ServeSettings) -> dict[str, str]:
    """A call to copy for each way in."""
    deployment = settings.config.deployments[0]
    values = {
        "polyfleet": command_name(),
        "grpc": settings.grpc_address,
        "http": settings.http_address,
        "model": deployment.model_name or deployment.name,
    }
    python = f"Python ({sys.executable})"
    return {"Shell": COMMAND.format(**values), "curl": CURL.format(**values), python: PYTHON.format(**values)}


def command_name() -> str:
    """How a shell finds this environment's `polyfleet`: by its name where that is on the PATH, else by its path."""
    here = Path(sys.executable).with_name("polyfleet")
    found = shutil.which("polyfleet")
    return "polyfleet" if found and Path(found).absolute() == here.absolute() else shlex.quote(str(here))

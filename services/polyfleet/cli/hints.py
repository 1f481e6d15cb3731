"""What a ready stack prints: its endpoints and calls to copy."""

import shlex
import shutil
import sys
from pathlib import Path

from polyfleet.cli.settings import ServeSettings

PYTHON = """\
from polyfleet.client import Client{python_import}
with Client("{grpc}"{python_access}) as client:
    for delta in client.stream(messages=[{{"role": "user", "content": "Hello!"}}]):
        print(delta.text, end="", flush=True)"""

CURL = """\
curl -N {scheme}://{http}/v1/chat/completions{curl_access} -H 'Content-Type: application/json' -d \\
  '{{"model": "{model}", "messages": [{{"role": "user", "content": "Hello!"}}], "stream": true}}'"""

COMMAND = "{polyfleet} chat --gateway {grpc}{shell_access}"


def endpoints(settings: ServeSettings) -> str:
    """Where everything listens, one line each."""
    gateway_metrics, metrics = settings.metrics_addresses
    return "\n".join(
        (
            f"gRPC     {settings.grpc_address}   polyfleet.v1.Inference",
            f"HTTP     {scheme(settings)}://{settings.http_address}/v1   OpenAI-compatible; /healthz /readyz",
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
        "scheme": scheme(settings),
        **access(settings),
    }
    python = f"Python ({sys.executable})"
    return {"Shell": COMMAND.format(**values), "curl": CURL.format(**values), python: PYTHON.format(**values)}


def scheme(settings: ServeSettings) -> str:
    """Of the gateway's HTTP."""
    return "https" if settings.config.gateway.tls_cert else "http"


def access(settings: ServeSettings) -> dict[str, str]:
    """What the calls need besides, by kind of call, with KEY, KEY_FILE and CA_FILE for what only the caller has."""
    found = {"shell_access": "", "curl_access": "", "python_access": "", "python_import": ""}
    if settings.config.gateway.keys_file:
        found["shell_access"] += " --api-key-file KEY_FILE"
        found["curl_access"] += " -H 'Authorization: Bearer KEY'"
        found["python_access"] += ', api_key="KEY"'
    if settings.config.gateway.tls_cert:
        found["shell_access"] += " --ca-file CA_FILE"
        found["curl_access"] += " --cacert CA_FILE"
        found["python_import"] = ", Tls"
        found["python_access"] += ', tls=Tls(ca_file="CA_FILE")'
    return found


def command_name() -> str:
    """How a shell finds this environment's `polyfleet`: by its name where that is on the PATH, else by its path."""
    here = Path(sys.executable).with_name("polyfleet")
    found = shutil.which("polyfleet")
    return "polyfleet" if found and Path(found).absolute() == here.absolute() else shlex.quote(str(here))

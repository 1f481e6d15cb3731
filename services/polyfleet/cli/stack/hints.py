"""What a ready stack prints: its endpoints and calls to copy."""

import shlex
import sys
from pathlib import Path

import msgspec

from polyfleet.cli.options import DEFAULT_FLEET
from polyfleet.cli.stack.settings import ServeSettings
from polyfleet.cli.terminal.output import command_name, shell_path

PYTHON = """\
from polyfleet.client import Client{python_import}
with Client("{grpc}"{python_access}) as client:
    for delta in client.stream(model={model!r}, messages=[{{"role": "user", "content": "Hello!"}}], max_tokens=64):
        print(delta.text, end="", flush=True)"""

CURL = """\
curl -N {scheme}://{http}/v1/chat/completions{curl_access} -H 'Content-Type: application/json' -d \\
  {body}"""

COMMAND = "{polyfleet} chat --gateway {grpc} --model {shell_model}{shell_access}"


def endpoints(settings: ServeSettings, console: str = "") -> str:
    """Where everything listens, one line each, and what it asks for; `console` is its address, empty without one."""
    gateway_metrics, metrics = settings.metrics_addresses
    gateway = settings.config.gateway
    http = f"{scheme(settings)}://{settings.http_address}"
    asks = "".join((", with TLS" if gateway.tls_cert else "", ", with a key" if gateway.keys_file else ""))
    elsewhere = "" if settings.fleet_address == DEFAULT_FLEET else f" --fleet {settings.fleet_address}"
    fleet = f"for `{command_name()} workers{elsewhere}`, deploy, undeploy, drain"
    pages = (f"Console  {console}   the fleet and a chat in a browser",) if console else ()
    return "\n".join(
        (
            *pages,
            f"gRPC     {settings.grpc_address}   polyfleet.v1.Inference{asks}",
            f"HTTP     {http}/v1   OpenAI-compatible{asks}; / in a browser; /healthz /readyz",
            f"Fleet    {settings.fleet_address}   {fleet}",
            f"Metrics  http://{gateway_metrics}/metrics   the gateway's",
            f"         http://{metrics}/metrics   the scheduler's; /targets: where the workers' are",
            f"State    {settings.state_dir}",
        )
    )


def calls(settings: ServeSettings, api_key_file: Path | None = None, ca_file: Path | None = None) -> dict[str, str]:
    """A call to copy for each way in, with the key and the roots that `polyfleet serve` itself was given."""
    deployment = settings.config.deployments[0]
    model = deployment.model_name or deployment.name
    body = msgspec.json.encode(
        {"model": model, "messages": [{"role": "user", "content": "Hello!"}], "stream": True}
    ).decode()
    values = {
        "polyfleet": command_name(),
        "grpc": settings.grpc_address,
        "http": settings.http_address,
        "model": model,
        "shell_model": shlex.quote(model),
        "body": shlex.quote(msgspec.json.format(body, indent=0)),
        "scheme": scheme(settings),
        **access(settings, api_key_file, ca_file),
    }
    python = f"Python ({shell_path(Path(sys.executable))})"
    return {"Shell": COMMAND.format(**values), "curl": CURL.format(**values), python: PYTHON.format(**values)}


def scheme(settings: ServeSettings) -> str:
    """Of the gateway's HTTP."""
    return "https" if settings.config.gateway.tls_cert else "http"


def access(settings: ServeSettings, api_key_file: Path | None, ca_file: Path | None) -> dict[str, str]:
    """What the calls need besides, by kind of call; the key stays in its file."""
    found = {"shell_access": "", "curl_access": "", "python_access": "", "python_import": ""}
    if settings.config.gateway.keys_file and api_key_file:
        file = str(api_key_file.absolute())
        found["shell_access"] += f" --api-key-file {shell_path(api_key_file)}"
        found["curl_access"] += f' -H "Authorization: Bearer $(head -n 1 {shell_path(api_key_file)})"'
        found["python_access"] += f", api_key=open({file!r}).readline().strip()"
    if settings.config.gateway.tls_cert and ca_file:
        found["shell_access"] += f" --ca-file {shell_path(ca_file)}"
        found["curl_access"] += f" --cacert {shell_path(ca_file)}"
        found["python_import"] = ", Tls"
        found["python_access"] += f", tls=Tls(ca_file={str(ca_file.absolute())!r})"
    elif settings.config.gateway.tls_cert:
        found["shell_access"] += " --tls"
        found["python_access"] += ", tls=True"
    return found

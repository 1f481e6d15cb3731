"""What a ready stack prints: its endpoints and calls to copy."""

from polyfleet.cli.settings import ServeSettings

PYTHON = """\
from polyfleet.client import Client
with Client("{grpc}") as client:
    for delta in client.stream(messages=[{{"role": "user", "content": "Hello!"}}]):
        print(delta.text, end="", flush=True)"""

CURL = """\
curl -N http://{http}/v1/chat/completions -H 'Content-Type: application/json' -d \\
  '{{"model": "{model}", "messages": [{{"role": "user", "content": "Hello!"}}], "stream": true}}'"""

COMMAND = "polyfleet chat --gateway {grpc}"


def endpoints(settings: ServeSettings) -> str:
    """Where everything listens, one line each."""
    return "\n".join(
        (
            f"gRPC     {settings.grpc_address}   polyfleet.v1.Inference",
            f"HTTP     http://{settings.http_address}/v1   OpenAI-compatible; /healthz /readyz /metrics",
            f"Fleet    {settings.fleet_address}   for `polyfleet workers` and `polyfleet deploy`",
            f"State    {settings.state_dir}",
        )
    )


def calls(settings: ServeSettings) -> dict[str, str]:
    """A call to copy for each way in."""
    deployment = settings.config.deployments[0]
    values = {
        "grpc": settings.grpc_address,
        "http": settings.http_address,
        "model": deployment.model_name or deployment.name,
    }
    return {"Shell": COMMAND.format(**values), "curl": CURL.format(**values), "Python": PYTHON.format(**values)}

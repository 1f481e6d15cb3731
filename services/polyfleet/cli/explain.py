"""`polyfleet explain`: which worker a prompt goes to now, and why not to the others."""

import json
from pathlib import Path
from typing import Any

import click

from polyfleet.cli.errors import CliError, ExitCode, calling
from polyfleet.cli.options import (
    check_address,
    examples,
    gateway_options,
    json_option,
    model_option,
    read_secret,
    read_text,
)
from polyfleet.cli.output import out, print_json, print_table


@click.command(epilog=examples("polyfleet explain 'Hello, world'", "polyfleet explain --json - < prompt.txt"))
@click.argument("text", required=False)
@model_option
@gateway_options
@json_option
def explain(
    text: str | None,
    model: str | None,
    as_json: bool,
    gateway: str,
    api_key_file: Path | None,
    tls: bool,
    ca_file: Path | None,
) -> None:
    """Send TEXT for one token, and show what its placement was decided by; `-` or nothing reads stdin."""
    found = placement_of(read_text(text, "The text"), model or "", gateway, api_key_file, tls, ca_file)
    if as_json:
        print_json(found)
        return
    out.print(f"{found['worker_id']} was chosen by policy {found['policy']}.", markup=False)
    columns = ("WORKER", "FIRST TOKEN S", "TOKEN S", "ALL S", "CACHED", "SCORE")
    rows = [tuple(str(value) for value in each.values()) for each in found["workers"]]
    print_table(columns, rows)
    for each in found["dropped"]:
        out.print(f"{each['worker_id']}: {each['reason']}", markup=False)
    if found["more"]:
        out.print(f"and {found['more']} more", style="dim")


def placement_of(
    text: str, model: str, gateway: str, api_key_file: Path | None, tls: bool, ca_file: Path | None
) -> dict[str, Any]:
    """What decided the last placement of a request for one token."""
    import grpc

    from polyfleet.client.channel import Tls, channel_options, tls_settings
    from polyfleet.v1 import inference_pb2, inference_pb2_grpc
    from polyfleet.wire.auth import bearer_metadata
    from polyfleet.wire.placements import ASK, TRAILER

    check_address(gateway)
    settings = tls_settings(Tls(ca_file=ca_file) if ca_file else tls)
    options = channel_options(gateway, settings)
    metadata = [*(bearer_metadata(read_secret(api_key_file, "API key")) or ()), ASK]
    with calling(gateway):
        secure = settings and grpc.secure_channel(gateway, settings.credentials(), options)
        with secure or grpc.insecure_channel(gateway, options) as channel:
            request = inference_pb2.GenerateRequest(model=model, text=text, max_tokens=1)
            call = inference_pb2_grpc.InferenceStub(channel).Generate(request, metadata=metadata)
            for _ in call:
                pass
            trailers = dict(call.trailing_metadata())
    if TRAILER not in trailers:
        raise CliError("The gateway gives no reasons: it is of an older version.", ExitCode.FAILED)
    placements: list[dict[str, Any]] = json.loads(trailers[TRAILER])
    return placements[-1]

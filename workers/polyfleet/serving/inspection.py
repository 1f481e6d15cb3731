"""Looks at a model's files beside the engine: in a process of its own, so that no token waits for it.

`python -m polyfleet.serving.inspection` reads an InspectionRequest in JSON from stdin and prints an InspectionReply. It
opens no device: an engine may fill this one to the last byte.
"""

import asyncio
import sys
from contextlib import suppress
from dataclasses import replace
from typing import Any

import msgspec

from polyfleet.loading.sources import check_is_here
from polyfleet.models.errors import ModelFileError
from polyfleet.process.within import Within
from polyfleet.wire.options import EngineOptions, OptionValue

INSPECTION_SECONDS = 120.0


class InspectionError(Exception):
    """Why a model can't be inspected, in one sentence."""


class ImaginedSite(msgspec.Struct, frozen=True):
    """A usual device of an accelerator with so much memory free, and what to call it."""

    accelerator: str
    name: str
    memory_bytes: int


class InspectionRequest(msgspec.Struct, frozen=True):
    """The model at a path, with these options, at these sites."""

    source: str
    options: dict[str, OptionValue]
    sites: tuple[ImaginedSite, ...]


class InspectionReply(msgspec.Struct, frozen=True):
    """An Inspection in JSON, or why there is none."""

    inspection: msgspec.Raw = msgspec.Raw(b"null")
    problem: str = ""


async def inspect(request: InspectionRequest) -> str:
    """The Inspection in JSON. Raises InspectionError."""
    try:
        check_is_here(request.source)
    except ModelFileError as error:
        raise InspectionError(f"The model {error}.") from None
    command = (sys.executable, "-m", __name__)
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, stderr=pipe)
    try:
        talk = process.communicate(msgspec.json.encode(request))
        with Within(INSPECTION_SECONDS):
            said, complaint = await talk
    except asyncio.TimeoutError:
        text = f"The model {request.source}: its files could not be read within {INSPECTION_SECONDS:.0f} s."
        raise InspectionError(text) from None
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
    if process.returncode:
        lines = complaint.decode(errors="replace").strip().splitlines() or [f"status {process.returncode}"]
        raise InspectionError(f"The model {request.source}: looking at it failed: {lines[-1]}.")
    reply = msgspec.json.decode(said, type=InspectionReply)
    if reply.problem:
        raise InspectionError(reply.problem)
    return bytes(reply.inspection).decode()


def answer(request: InspectionRequest) -> InspectionReply:
    """What is asked for, or why it can't be told; in the process of its own, since it needs torch."""
    from polyfleet.backends import BackendUnavailable
    from polyfleet.engine.fitting import Fit, site_imagined
    from polyfleet.engine.inspection import inspect_model

    options: Any = request.options
    sites, strangers = [], []
    for each in request.sites:
        try:
            sites.append(replace(site_imagined(each.accelerator, each.memory_bytes), name=each.name))
        except BackendUnavailable as error:
            strangers.append(Fit(each.name, each.memory_bytes, problem=str(error)))
    try:
        found = inspect_model(request.source, EngineOptions(**options), sites, lambda _: "")
    except ModelFileError as error:
        return InspectionReply(problem=f"The model {error}.")
    found = replace(found, fits=(*found.fits, *strangers))
    return InspectionReply(msgspec.Raw(msgspec.json.encode(found)))


def main() -> None:
    """Answer one request."""
    request = msgspec.json.decode(sys.stdin.buffer.read(), type=InspectionRequest)
    sys.stdout.buffer.write(msgspec.json.encode(answer(request)))


if __name__ == "__main__":
    main()

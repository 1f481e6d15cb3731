"""How calls end that ask for what can't be."""

import logging
from typing import Any, NoReturn

import grpc
from google.protobuf import any_pb2
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc_status import rpc_status

from polyfleet.scheduler.store import StoreError, StoreFullError
from polyfleet.wire.limits import FieldError

log = logging.getLogger(__name__)


async def abort_invalid(context: Any, error: FieldError) -> NoReturn:
    """End the call with INVALID_ARGUMENT; BadRequest in its details names the field."""
    violation = error_details_pb2.BadRequest.FieldViolation(field=error.field, description=error.problem)
    detail = any_pb2.Any()
    detail.Pack(error_details_pb2.BadRequest(field_violations=[violation]))
    proto = status_pb2.Status(code=code_pb2.INVALID_ARGUMENT, message=f"{error}.", details=[detail])
    status = rpc_status.to_status(proto)
    await context.abort(status.code, status.details, status.trailing_metadata)
    raise AssertionError("abort() raises")


async def abort_unwritten(context: Any, error: StoreError) -> NoReturn:
    """End the call whose content could not be stored."""
    log.error("Something was not stored: %s", error)
    full = isinstance(error, StoreFullError)
    await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED if full else grpc.StatusCode.INTERNAL, str(error))
    raise AssertionError("abort() raises")


async def abort_not_found(context: Any, kind: str, name: str, known: list[str]) -> NoReturn:
    """End the call with NOT_FOUND and the names that there are."""
    listed = ", ".join(known[:50]) or "none"
    await context.abort(grpc.StatusCode.NOT_FOUND, f"There is no {kind} {name!r:.80}; there are: {listed}.")
    raise AssertionError("abort() raises")

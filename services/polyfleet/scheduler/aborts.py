"""How calls end that ask for what can't be."""

from typing import Any, NoReturn

from google.protobuf import any_pb2
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc_status import rpc_status

from polyfleet.wire.limits import FieldError


async def abort_invalid(context: Any, error: FieldError) -> NoReturn:
    """End the call with INVALID_ARGUMENT; BadRequest in its details names the field."""
    violation = error_details_pb2.BadRequest.FieldViolation(field=error.field, description=error.problem)
    detail = any_pb2.Any()
    detail.Pack(error_details_pb2.BadRequest(field_violations=[violation]))
    proto = status_pb2.Status(code=code_pb2.INVALID_ARGUMENT, message=f"{error}.", details=[detail])
    status = rpc_status.to_status(proto)
    await context.abort(status.code, status.details, status.trailing_metadata)
    raise AssertionError("abort() raises")

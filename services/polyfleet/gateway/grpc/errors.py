"""ApiErrors as gRPC statuses with google.rpc details."""

import asyncio
from typing import Any

import grpc
from google.protobuf import any_pb2, duration_pb2, message
from google.rpc import error_details_pb2, status_pb2

from polyfleet.gateway.errors import ApiError
from polyfleet.process.within import Within

STATUSES = {status.value[0]: status for status in grpc.StatusCode}
MAX_MESSAGE_CHARACTERS = 1024  # trailers have to stay below 8 KB
MAX_VIOLATIONS = 8
DOMAIN = "polyfleet"  # whose reasons they are
STATUS_SECONDS = 1.0


async def abort(context: Any, error: ApiError) -> None:
    """End the call with the error's status; raises, as every abort does.

    A client that is gone gets none, and one that does not read loses the call after STATUS_SECONDS: CancelledError.
    """
    text = error.message[:MAX_MESSAGE_CHARACTERS]
    status = status_pb2.Status(code=int(error.code), message=text, details=[_packed(each) for each in _details(error)])
    trailers = (("grpc-status-details-bin", status.SerializeToString()),) if status.details else ()
    try:
        with Within(STATUS_SECONDS):
            await context.abort(STATUSES[int(error.code)], text, trailers)
    except (asyncio.TimeoutError, grpc.aio.InternalError, grpc.aio.UsageError):
        raise asyncio.CancelledError from None


def _details(error: ApiError) -> list[message.Message]:
    details: list[message.Message] = []
    if error.violations:
        violations = [
            error_details_pb2.BadRequest.FieldViolation(field=each.field, description=each.description[:256])
            for each in error.violations[:MAX_VIOLATIONS]
        ]
        details.append(error_details_pb2.BadRequest(field_violations=violations))
    if error.retry_after is not None:
        delay = duration_pb2.Duration()
        delay.FromNanoseconds(round(error.retry_after * 1e9))
        details.append(error_details_pb2.RetryInfo(retry_delay=delay))
    if error.reason:
        details.append(error_details_pb2.ErrorInfo(reason=error.reason.upper(), domain=DOMAIN))
    if error.quota:
        violation = error_details_pb2.QuotaFailure.Violation(subject=error.quota, description=error.message[:256])
        details.append(error_details_pb2.QuotaFailure(violations=[violation]))
    return details


def _packed(detail: message.Message) -> any_pb2.Any:
    packed = any_pb2.Any()
    packed.Pack(detail)
    return packed

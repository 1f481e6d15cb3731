"""Errors of the client: one class per gRPC status that the gateway documents, each with what the status carried."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2


@dataclass(frozen=True, slots=True)
class FieldViolation:
    """One field of the request that the gateway refuses, and why."""

    field: str
    description: str


class PolyfleetError(Exception):
    """A call failed. Subclasses tell the kinds apart.

    `status` is the gRPC status name (`"NOT_FOUND"`), `retry_after` the seconds after which the gateway says that
    trying again makes sense (None: it said nothing). `reason` tells an error from others of its status where programs
    have to (`"CONTEXT_LENGTH_EXCEEDED"`); else it is empty.
    """

    def __init__(
        self,
        status: str,
        message: str,
        field_violations: tuple[FieldViolation, ...] = (),
        retry_after: float | None = None,
        reason: str = "",
    ) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status
        self.message = message
        self.field_violations = field_violations
        self.retry_after = retry_after
        self.reason = reason


class InvalidArgumentError(PolyfleetError):
    """A field is missing, malformed or out of range; `field_violations` name it."""


class UnauthenticatedError(PolyfleetError):
    """No key, or a wrong one."""


class PermissionDeniedError(PolyfleetError):
    """The key's role does not allow the call."""


class NotFoundError(PolyfleetError):
    """No such model; the message lists those that are served."""


class ResourceExhaustedError(PolyfleetError):
    """A queue or limit is full; come back after `retry_after`."""


class UnavailableError(PolyfleetError):
    """No worker can serve it now, or the gateway can't be reached."""


class DeadlineExceededError(PolyfleetError):
    """The call took longer than its `timeout`."""


class CallCancelledError(PolyfleetError):
    """The call was cancelled on this side."""


class AbortedError(PolyfleetError):
    """The request lost more workers than it may, and may be what they fail of; what came before the error is right."""


class DataLossError(PolyfleetError):
    """The stream broke and could not be resumed; what came before the error is right, but not all."""


_CLASSES: dict[str, type[PolyfleetError]] = {
    "INVALID_ARGUMENT": InvalidArgumentError,
    "UNAUTHENTICATED": UnauthenticatedError,
    "PERMISSION_DENIED": PermissionDeniedError,
    "NOT_FOUND": NotFoundError,
    "RESOURCE_EXHAUSTED": ResourceExhaustedError,
    "UNAVAILABLE": UnavailableError,
    "DEADLINE_EXCEEDED": DeadlineExceededError,
    "CANCELLED": CallCancelledError,
    "ABORTED": AbortedError,
    "DATA_LOSS": DataLossError,
}


def from_rpc_error(error: grpc.RpcError) -> PolyfleetError:
    """The PolyfleetError of a gRPC error, with the details of its trailers; the base class itself for other codes."""
    status = error.code().name
    message = error.details() or "the server gave no message"
    violations: list[FieldViolation] = []
    retry_after: float | None = None
    reason = ""
    for detail in _details(error):
        if detail.Is(error_details_pb2.BadRequest.DESCRIPTOR):
            bad_request = error_details_pb2.BadRequest()
            detail.Unpack(bad_request)
            violations += [FieldViolation(v.field, v.description) for v in bad_request.field_violations]
        elif detail.Is(error_details_pb2.RetryInfo.DESCRIPTOR):
            retry_info = error_details_pb2.RetryInfo()
            detail.Unpack(retry_info)
            retry_after = retry_info.retry_delay.seconds + retry_info.retry_delay.nanos / 1e9
        elif detail.Is(error_details_pb2.ErrorInfo.DESCRIPTOR):
            info = error_details_pb2.ErrorInfo()
            detail.Unpack(info)
            reason = info.reason
    return _CLASSES.get(status, PolyfleetError)(status, message, tuple(violations), retry_after, reason)


def invalid_argument(field: str, problem: str) -> InvalidArgumentError:
    """The error for a value that can't even be written on the wire."""
    return InvalidArgumentError("INVALID_ARGUMENT", f"{field}: {problem}", (FieldViolation(field, problem),))


def _details(error: Any) -> list[Any]:
    """The `google.rpc.Status` details in the trailers; none when there are none or they can't be read."""
    trailers: Iterable[tuple[str, Any]] = error.trailing_metadata() or ()
    for key, value in trailers:
        if key == "grpc-status-details-bin":
            try:
                return list(status_pb2.Status.FromString(value).details)
            except DecodeError:
                return []
    return []

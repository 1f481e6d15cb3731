"""The gateway's one error hierarchy: each class is a status with the same meaning over gRPC and over HTTP."""

from dataclasses import dataclass
from enum import IntEnum, unique
from typing import ClassVar

from polyfleet.wire.limits import FieldError


@unique
class Code(IntEnum):
    """google.rpc.Code, as far as the gateway uses it."""

    OK = 0
    CANCELLED = 1
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


@dataclass(frozen=True, slots=True)
class FieldViolation:
    """A request's field and what is wrong with it."""

    field: str
    description: str


class ApiError(Exception):
    """A request ends with this status. `str()` is one sentence for the caller.

    `violations` name the fields at fault (google.rpc.BadRequest); `retry_after` is in seconds (google.rpc.RetryInfo,
    HTTP's Retry-After), None where coming back does not help; `quota` names the limit that is used up
    (google.rpc.QuotaFailure); `reason` tells this error
    from others of its status (google.rpc.ErrorInfo, OpenAI's `code`), empty where nobody has to.
    """

    code: ClassVar[Code] = Code.INTERNAL

    def __init__(
        self,
        message: str,
        *,
        violations: tuple[FieldViolation, ...] = (),
        retry_after: float | None = None,
        quota: str = "",
        reason: str = "",
    ) -> None:
        super().__init__(message)
        self.message = message
        self.violations = violations
        self.retry_after = retry_after
        self.quota = quota
        self.reason = reason


class InvalidArgument(ApiError):
    """A field is missing, malformed or out of range."""

    code = Code.INVALID_ARGUMENT

    @classmethod
    def of(cls, error: FieldError) -> "InvalidArgument":
        """From the wire's FieldError."""
        violations = (FieldViolation(error.field, error.problem),)
        return cls(f"{error}.", violations=violations, reason=error.reason)


class Unauthenticated(ApiError):
    """No key, or one that is not known."""

    code = Code.UNAUTHENTICATED


class PermissionDenied(ApiError):
    """The key's role does not allow the call."""

    code = Code.PERMISSION_DENIED


class NotFound(ApiError):
    """No such model."""

    code = Code.NOT_FOUND


class FailedPrecondition(ApiError):
    """The model can't do this."""

    code = Code.FAILED_PRECONDITION


class ResourceExhausted(ApiError):
    """A queue or limit is full."""

    code = Code.RESOURCE_EXHAUSTED


class Unavailable(ApiError):
    """No worker can serve it now."""

    code = Code.UNAVAILABLE


class DeadlineExceeded(ApiError):
    """The caller's deadline has passed."""

    code = Code.DEADLINE_EXCEEDED


class Aborted(ApiError):
    """Lost more workers than one request may: it may be what they die of, so nobody should just send it again."""

    code = Code.ABORTED


class DataLoss(ApiError):
    """A stream broke and could not be resumed."""

    code = Code.DATA_LOSS


class Internal(ApiError):
    """A fault of Polyfleet itself."""

    code = Code.INTERNAL


_CLASSES: dict[int, type[ApiError]] = {
    each.code: each
    for each in (
        InvalidArgument,
        Unauthenticated,
        PermissionDenied,
        NotFound,
        FailedPrecondition,
        ResourceExhausted,
        Unavailable,
        DeadlineExceeded,
        DataLoss,
    )
}


def error_of(code: int, message: str, retry_after: float | None = None) -> ApiError:
    """The error of a google.rpc.Code that a worker gave; Internal for one that makes no sense here."""
    return _CLASSES.get(code, Internal)(message, retry_after=retry_after)

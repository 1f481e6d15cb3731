"""ApiErrors as OpenAI's error body and an HTTP status that means the same."""

import logging
import math
from collections.abc import Mapping

import msgspec
from starlette.responses import Response

from polyfleet.gateway.errors import ApiError, Code, Internal, InvalidArgument
from polyfleet.gateway.http.names import AS_IN_CORE, Names, http_field
from polyfleet.wire.limits import FieldError

log = logging.getLogger(__name__)

# Status, OpenAI's `type`, OpenAI's `code`.
_HTTP: Mapping[Code, tuple[int, str, str]] = {
    Code.CANCELLED: (499, "invalid_request_error", "cancelled"),
    Code.INVALID_ARGUMENT: (400, "invalid_request_error", "invalid_argument"),
    Code.FAILED_PRECONDITION: (400, "invalid_request_error", "failed_precondition"),
    Code.UNAUTHENTICATED: (401, "authentication_error", "invalid_api_key"),
    Code.PERMISSION_DENIED: (403, "permission_error", "permission_denied"),
    Code.NOT_FOUND: (404, "invalid_request_error", "model_not_found"),
    Code.RESOURCE_EXHAUSTED: (429, "rate_limit_error", "rate_limit_exceeded"),
    Code.INTERNAL: (500, "server_error", "internal"),
    Code.ABORTED: (500, "server_error", "aborted"),
    Code.DATA_LOSS: (500, "server_error", "data_loss"),
    Code.UNAVAILABLE: (503, "server_error", "unavailable"),
    Code.DEADLINE_EXCEEDED: (504, "server_error", "deadline_exceeded"),
}
# OpenAI's `type` of what never became a request; clients take invalid_request_error for 400, whatever the status says.
_PLAIN_TYPES: Mapping[int, str] = {404: "not_found_error", 408: "timeout_error", 429: "rate_limit_error"}


class BodyTooLarge(InvalidArgument):
    """The body is over the gateway's limit."""


class UnsupportedMediaType(InvalidArgument):
    """The body does not claim to be JSON."""


_STATUS_OF_CLASS: Mapping[type[ApiError], int] = {BodyTooLarge: 413, UnsupportedMediaType: 415}


class ErrorDetail(msgspec.Struct):
    """What OpenAI clients read of an error."""

    message: str
    type: str
    param: str | None
    code: str


class ErrorBody(msgspec.Struct):
    """Body of every reply that is not 2xx, and data of a stream's error event."""

    error: ErrorDetail


def http_status(error: ApiError) -> int:
    """The HTTP status of an error."""
    return _STATUS_OF_CLASS.get(type(error), _HTTP[error.code][0])


def error_message(error: ApiError, names: Names = AS_IN_CORE) -> tuple[str, str | None]:
    """What a caller is told, and the field at fault, as the endpoint calls it."""
    if not (error.violations and error.violations[0].field):
        return error.message, None
    violation = error.violations[0]
    param = http_field(violation.field, names)
    told = f" ({error.reason})" if error.reason else ""  # newer OpenAI clients show nothing else of the body
    return f"{param}: {violation.description.rstrip('.')}{told}.", param


def openai_code(error: ApiError) -> str:
    """OpenAI's `code` of an error."""
    return error.reason or _HTTP[error.code][2]


def error_body(error: ApiError, names: Names = AS_IN_CORE) -> bytes:
    """The error as JSON."""
    message, param = error_message(error, names)
    return msgspec.json.encode(ErrorBody(ErrorDetail(message, _HTTP[error.code][1], param, openai_code(error))))


def error_response(error: ApiError, names: Names = AS_IN_CORE) -> Response:
    """The whole reply, with the headers that belong to its status."""
    return Response(error_body(error, names), http_status(error), error_headers(error), "application/json")


def error_headers(error: ApiError) -> dict[str, str]:
    """The headers that belong to an error's status."""
    headers = {}
    if error.retry_after is not None:
        headers["retry-after"] = str(max(1, math.ceil(error.retry_after)))
    if error.code is Code.UNAUTHENTICATED:
        headers["www-authenticate"] = "Bearer"
    if error.code is Code.ABORTED:
        headers["x-should-retry"] = "false"  # OpenAI's and Anthropic's clients would, behind any 500
    if isinstance(error, BodyTooLarge):
        headers["connection"] = "close"  # the rest of the body will not be read
    return headers


def plain_error(status: int, message: str, code: str) -> Response:
    """A reply for what is no ApiError: an unknown path, a wrong method."""
    return Response(_plain_body(status, message, code), status, media_type="application/json")


def plain_error_body(status: int, message: str) -> bytes:
    """The body of a refusal for which there is no request yet."""
    return _plain_body(status, message, "rate_limit_exceeded" if status == 429 else "bad_request")


def _plain_body(status: int, message: str, code: str) -> bytes:
    kind = _PLAIN_TYPES.get(status, "invalid_request_error")
    return msgspec.json.encode(ErrorBody(ErrorDetail(message, kind, None, code)))


def invalid_field(error: FieldError) -> InvalidArgument:
    """The ApiError of a FieldError found in a body."""
    return (
        InvalidArgument.of(error)
        if error.field
        else InvalidArgument(f"{error.problem[:1].upper()}{error.problem[1:]}.")
    )


def internal_error(fault: Exception, request_id: str) -> Internal:
    """What a caller is told of a fault of ours; the log gets the rest."""
    log.error("A request failed.", exc_info=fault, extra={"request_id": request_id})
    return Internal("The gateway failed; its log has the reason under this request's id.")

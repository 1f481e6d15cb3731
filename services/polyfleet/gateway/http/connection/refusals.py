"""What the HTTP port says to requests that never reach the application."""

from dataclasses import dataclass

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from polyfleet.gateway.http.errors import plain_error_body
from polyfleet.wire.ids import new_id

MAX_PIPELINED = 16  # requests behind the one that is answered


@dataclass(frozen=True)
class Refusal:
    """Why a request is turned away before the application answers it. `reason` is the metric's label."""

    status: int
    reason: str
    message: str

    def reply(self, headers: list[tuple[bytes, bytes]]) -> bytes:
        """The whole answer, which ends the connection; `headers` are the server's."""
        body = plain_error_body(self.status, self.message)
        mine = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"x-request-id", new_id("req").encode()),
            (b"connection", b"close"),
        ]
        lines = [b"%s: %s\r\n" % each for each in (*headers, *mine)]
        return b"".join((STATUS_LINE[self.status], *lines, b"\r\n", body))


MALFORMED = Refusal(400, "malformed", "The request is no valid HTTP/1.1.")
HEAD_LATE = Refusal(408, "header_time", "The request's headers did not come in time.")
BODY_LATE = Refusal(408, "body_time", "The request's body did not come in time.")
FRAMING = Refusal(413, "body_size", "The body has more framing than content.")
HEAD_SIZE = Refusal(431, "header_size", "The request's line and headers are over this server's limit.")
PIPELINED = Refusal(429, "pipelined", f"More than {MAX_PIPELINED} requests wait on this connection.")


class Refused(Exception):
    """Leaves the parser; `refusal` says why."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal

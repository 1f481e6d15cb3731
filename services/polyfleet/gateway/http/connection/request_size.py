"""How much of a connection's present request has come, and when that is too much."""

from collections.abc import Callable

from polyfleet.gateway.config import Limits
from polyfleet.gateway.http.connection.refusals import FRAMING, HEAD_SIZE, Refused

FRAMING_BYTES = 65_536  # of a chunked body, beside…
FRAMING_FACTOR = 1  # …so much for each byte of it: thousands of chunks of one byte are allowed, no million of them


class RequestSize:
    """Follows the parser from one request to the next; what goes over a bound is Refused."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.incoming = False  # a request has begun and not come whole
        self.in_head = False  # and its headers neither
        self._num_heads = 0  # of all requests
        self._head_bytes = self._num_headers = 0  # parsed, of this one
        self._raw_head_bytes = 0  # that came while its head stayed unfinished
        self._raw_bytes = self._body_bytes = 0  # behind its head, with and without framing

    def feed(self, data: bytes, parse: Callable[[bytes], object]) -> None:
        """Let `parse` have what came, which calls the methods below. Raises Refused, and what `parse` raises."""
        head = self._num_heads + (not self.incoming)  # the one that these bytes belong to from the first on
        self._raw_bytes += len(data)
        parse(data)
        if self.in_head and self._num_heads == head:
            self._raw_head_bytes += len(data)
            self._check_head(self._raw_head_bytes)
        framing = self._raw_bytes - self._body_bytes
        if self.incoming and not self.in_head and framing > FRAMING_BYTES + FRAMING_FACTOR * self._body_bytes:
            raise Refused(FRAMING)

    def begin(self) -> None:
        """A request begins."""
        self.incoming = self.in_head = True
        self._num_heads += 1
        self._head_bytes = self._num_headers = self._raw_head_bytes = 0

    def url(self, num_bytes: int) -> None:
        """A part of the request's line."""
        self._head_bytes += num_bytes
        self._check_head(self._head_bytes)

    def header(self, name: bytes, value: bytes) -> None:
        """A header, or a trailer behind the body."""
        self._num_headers += 1
        self._head_bytes += len(name) + len(value) + 4
        self._check_head(self._head_bytes)

    def begin_body(self) -> None:
        """The head is whole."""
        self.in_head = False
        self._raw_bytes = self._body_bytes = 0

    def body(self, num_bytes: int) -> None:
        """A part of the body."""
        self._body_bytes += num_bytes

    def end(self) -> None:
        """The request has come whole."""
        self.incoming = False

    def _check_head(self, num_bytes: int) -> None:
        if num_bytes > self._limits.max_header_bytes or self._num_headers > self._limits.max_headers:
            raise Refused(HEAD_SIZE)

"""What an HTTP server answers, byte by byte, with a bound on all of it. Pure."""

import httptools

from polyfleet.wire.limits import FieldError

HEAD_BYTES = 65_536  # of status and headers


class Reply:
    """Feed it until it is `complete`. Bodies may have `max_bytes`."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._room = max_bytes + HEAD_BYTES
        self._parser = httptools.HttpResponseParser(self)
        self._headers: dict[str, str] = {}
        self._body = bytearray()
        self._begun = False  # its headers have come
        self.complete = False

    def feed(self, data: bytes) -> None:
        """Take what came; nothing: the connection has ended. Raises FieldError."""
        self._room -= len(data)
        if not data:
            if not self._begun or self._headers.keys() & {"content-length", "transfer-encoding"}:
                raise FieldError("", "could not be fetched: the connection ended in the midst of it")
            self.complete = True
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            raise FieldError("", "could not be fetched: the host does not speak HTTP") from None
        if len(self._body) > self._max_bytes or self._room < 0:
            raise FieldError("", f"is over this server's limit of {self._max_bytes} bytes for an image")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Of httptools."""
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """Of httptools."""
        self._begun = True

    def on_body(self, body: bytes) -> None:
        """Of httptools."""
        self._body += body

    def on_message_complete(self) -> None:
        """Of httptools."""
        self.complete = self.status >= 200  # before it may come hints

    @property
    def status(self) -> int:
        """0 before it has come."""
        return int(self._parser.get_status_code())

    @property
    def location(self) -> str:
        """Where it redirects to; empty: nowhere."""
        return self._headers.get("location", "") if self.status in (301, 302, 303, 307, 308) else ""

    @property
    def body(self) -> bytes:
        """What was fetched."""
        return bytes(self._body)

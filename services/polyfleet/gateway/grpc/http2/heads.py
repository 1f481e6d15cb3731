"""What stands before and behind a call's messages: gRPC's request headers read, its status written. Pure."""

import re
import zlib
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Iterable, Sequence
from typing import NamedTuple
from urllib.parse import quote, quote_from_bytes

from polyfleet.gateway.grpc.http2.frames import StreamProblem
from polyfleet.gateway.grpc.http2.hpack import KNOWN_BYTES, MAX_KNOWN, Header

Metadata = tuple[tuple[str, str | bytes], ...]
BINARY = "-bin"
TIMEOUT = re.compile(rb"([0-9]{1,8})([HMSmun])")
LENGTH = re.compile(rb"[0-9]{1,18}")
SECONDS = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
NAME = re.compile(rb"[0-9a-z_.!#$%&'*+^`|~-]+")
NO_VALUE = re.compile(rb"[\0\r\n]")  # what holds these is none
PSEUDO = frozenset({b":method", b":scheme", b":path", b":authority"})
UNTOLD = frozenset({b"te", b"content-type"})  # no metadata, as names that begin with grpc-
TYPE = re.compile(rb"application/grpc(\+proto)?( *;.*)?", re.IGNORECASE)
OF_CONNECTIONS = frozenset({b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"})
IDENTITY = b"identity"
ENCODINGS = {b"gzip": zlib.MAX_WBITS | 16, b"deflate": zlib.MAX_WBITS}  # what zlib calls them
ANSWER = (
    (b":status", b"200"),
    (b"content-type", b"application/grpc"),
    (b"grpc-accept-encoding", b",".join((IDENTITY, *ENCODINGS))),
)
PLAIN = " !\"#$&'()*+,-./:;<=>?@[\\]^_`{|}~"  # beside letters and digits, in grpc-message


class Head(NamedTuple):
    """A call's request.

    `problem`: why it is no call of gRPC, as an HTTP status; `fault`: what of gRPC's own headers can't be read. Both are
    empty where all is well.
    """

    path: str
    metadata: Metadata
    timeout: float | None  # seconds
    encoding: bytes  # of messages that are compressed
    size: int  # bytes, as HTTP/2 counts a header list
    problem: str = ""
    fault: str = ""
    length: int | None = None  # bytes of all messages with their prefixes, where the client told

    def fits(self, size: int, *, end: bool) -> bool:
        """Whether so many bytes of messages may have come, behind which none follow at the `end`."""
        return self.length is None or size == self.length or (size < self.length and not end)


def read_head(headers: Sequence[tuple[bytes, bytes]]) -> Head:
    """Of decoded headers. Raises StreamProblem for what HTTP/2 calls malformed."""
    pseudo, size = dict[bytes, bytes](), 0
    for name, value in headers:
        size += len(name) + len(value) + 32
        if name[:1] == b":":
            if name in pseudo or name not in PSEUDO or NO_VALUE.search(value):
                raise StreamProblem("a pseudo-header can't be")
            pseudo[name] = value
    others = headers[len(pseudo) :]
    check_fields(others)
    if not (path := pseudo.get(b":path")) or b":method" not in pseudo or b":scheme" not in pseudo:
        raise StreamProblem("a pseudo-header is missing")
    own = dict(others)
    problem = "405" if pseudo[b":method"] != b"POST" else ""
    if TYPE.fullmatch(own.get(b"content-type", b"")) is None:
        problem = problem or "415"
    encoding = own.get(b"grpc-encoding", IDENTITY)
    metadata: Metadata = ()
    timeout, fault = None, ""
    try:
        metadata, timeout = _metadata(others), _timeout(own)
    except ValueError as error:
        fault = str(error)
    length = _length(own)
    return Head(path.decode("latin-1"), metadata, timeout, encoding, size, problem, fault, length)


class HeadReader:
    """`read_head`, once for headers that came lately as well: most calls of a client say the same."""

    def __init__(self) -> None:
        self._known: dict[tuple[Header, ...], Head] = {}

    def read(self, headers: tuple[Header, ...]) -> Head:
        """Of decoded headers. Raises StreamProblem."""
        if (head := self._known.get(headers)) is None:
            head = read_head(headers)
            if len(self._known) >= MAX_KNOWN:
                self._known.clear()
            if head.size <= KNOWN_BYTES:
                self._known[headers] = head
        return head


def check_fields(headers: Iterable[tuple[bytes, bytes]]) -> None:
    """Raises StreamProblem for those that can't stand behind a call's pseudo-headers, or behind its messages."""
    for name, value in headers:
        if NAME.fullmatch(name) is None or name in OF_CONNECTIONS:  # no pseudo-header has such a name
            raise StreamProblem("a header's name can't be")
        if NO_VALUE.search(value) or (name == b"te" and value.lower() != b"trailers"):
            raise StreamProblem("a header's value can't be")


def _length(headers: dict[bytes, bytes]) -> int | None:
    if (told := headers.get(b"content-length")) is None:
        return None
    if LENGTH.fullmatch(told) is None:
        raise StreamProblem("content-length can't be read")
    return int(told)


def _timeout(headers: dict[bytes, bytes]) -> float | None:
    if (told := headers.get(b"grpc-timeout")) is None:
        return None
    if (found := TIMEOUT.fullmatch(told)) is None:
        raise ValueError("grpc-timeout can't be read.")
    return int(found[1]) * SECONDS[found[2]]


def _metadata(headers: Iterable[tuple[bytes, bytes]]) -> Metadata:
    told = list[tuple[str, str | bytes]]()
    for name, value in headers:
        if name in UNTOLD or name.startswith(b"grpc-"):
            continue
        if name.endswith(BINARY.encode()):
            told += ((name.decode(), _binary(each)) for each in value.split(b","))
        else:
            told.append((name.decode(), value.decode("latin-1")))
    return tuple(told)


def _binary(value: bytes) -> bytes:
    try:
        return b64decode(value + b"=" * (-len(value) % 4), validate=True)
    except Base64Error:
        raise ValueError("Binary metadata is not in base64.") from None


def expanded(message: bytes, encoding: bytes, max_bytes: int) -> bytes:
    """A message out of its compression. Raises ValueError where it can't be, or would have over `max_bytes`."""
    if (bits := ENCODINGS.get(encoding)) is None:
        raise ValueError(f"Messages in the encoding {encoding.decode('latin-1'):.32} can't be read.")
    expanding = zlib.decompressobj(bits)
    try:
        found = expanding.decompress(message, max_bytes + 1)
    except zlib.error:
        raise ValueError("A compressed message can't be read.") from None
    if len(found) > max_bytes or not expanding.eof:
        raise ValueError(f"A compressed message ends early, or is larger than {max_bytes} bytes.")
    return found


def peer_name(host: str, port: int) -> str:
    """A client's address, as gRPC writes it."""
    return f"ipv6:{quote(f'[{host}]')}:{port}" if ":" in host else f"ipv4:{host}:{port}"


def trailers(code: int, details: str, metadata: Metadata) -> tuple[tuple[bytes, bytes], ...]:
    """A call's status, and what its handler has to say beside it."""
    status: tuple[tuple[bytes, bytes], ...] = ((b"grpc-status", b"%d" % code),)
    if details:
        status += ((b"grpc-message", quote_from_bytes(details.encode("utf-8", "replace"), PLAIN).encode()),)
    return (*status, *((name.encode(), _written(value)) for name, value in metadata))


def _written(value: str | bytes) -> bytes:
    return b64encode(value).rstrip(b"=") if isinstance(value, bytes) else value.encode("latin-1", "replace")

"""HPACK (RFC 7541): the headers of calls, as clients compress them. Pure.

A server's own headers are literals (`frames.header_block`), so nothing is kept for them.
"""

from polyfleet.gateway.grpc.http2.frames import ConnectionProblem, Problem

Header = tuple[bytes, bytes]
TABLE_BYTES = 4096  # of the headers that a client may refer to again
OVERHEAD = 32  # that each of them counts more
MAX_INTEGER_BYTES = 5
KNOWN = """
    :authority:
    :method: GET
    :method: POST
    :path: /
    :path: /index.html
    :scheme: http
    :scheme: https
    :status: 200
    :status: 204
    :status: 206
    :status: 304
    :status: 400
    :status: 404
    :status: 500
    accept-charset:
    accept-encoding: gzip, deflate
    accept-language:
    accept-ranges:
    accept:
    access-control-allow-origin:
    age:
    allow:
    authorization:
    cache-control:
    content-disposition:
    content-encoding:
    content-language:
    content-length:
    content-location:
    content-range:
    content-type:
    cookie:
    date:
    etag:
    expect:
    expires:
    from:
    host:
    if-match:
    if-modified-since:
    if-none-match:
    if-range:
    if-unmodified-since:
    last-modified:
    link:
    location:
    max-forwards:
    proxy-authenticate:
    proxy-authorization:
    range:
    referer:
    refresh:
    retry-after:
    server:
    set-cookie:
    strict-transport-security:
    transfer-encoding:
    user-agent:
    vary:
    via:
    www-authenticate:
"""
# Bytes by the length of their Huffman codes in bits; codes of one length follow each other, as those of rising length.
SYMBOLS = {
    5: b"012aceiost",
    6: b" %-./3456789=A_bdfghlmnpru",
    7: b":BCDEFGHIJKLMNOPQRSTUVWYjkqvwxyz",
    8: b"&*,;XZ",
    10: b'!"()?',
    11: b"'+|",
    12: b"#>",
    13: b"\x00$@[]~",
    14: b"^}",
    15: b"<`{",
    19: b"\\\xc3\xd0",
    20: b"\x80\x82\x83\xa2\xb8\xc2\xe0\xe2",
    21: b"\x99\xa1\xa7\xac\xb0\xb1\xb3\xd1\xd8\xd9\xe3\xe5\xe6",
    22: b"\x81\x84\x85\x86\x88\x92\x9a\x9c\xa0\xa3\xa4\xa9\xaa\xad\xb2\xb5\xb9\xba\xbb\xbd\xbe\xc4\xc6\xe4\xe8\xe9",
    23: b"\x01\x87\x89\x8a\x8b\x8c\x8d\x8f\x93\x95\x96\x97\x98\x9b"
    b"\x9d\x9e\xa5\xa6\xa8\xae\xaf\xb4\xb6\xb7\xbc\xbf\xc5\xe7\xef",
    24: b"\t\x8e\x90\x91\x94\x9f\xab\xce\xd7\xe1\xec\xed",
    25: b"\xc7\xcf\xea\xeb",
    26: b"\xc0\xc1\xc8\xc9\xca\xcd\xd2\xd5\xda\xdb\xee\xf0\xf2\xf3\xff",
    27: b"\xcb\xcc\xd3\xd4\xd6\xdd\xde\xdf\xf1\xf4\xf5\xf6\xf7\xf8\xfa\xfb\xfc\xfd\xfe",
    28: b"\x02\x03\x04\x05\x06\x07\x08\x0b\x0c\x0e\x0f\x10\x11\x12"
    b"\x13\x14\x15\x17\x18\x19\x1a\x1b\x1c\x1d\x1e\x1f\x7f\xdc\xf9",
    30: b"\n\r\x16",
}


def _static(line: str) -> Header:
    name, _, value = line.strip()[1:].partition(":")
    return (line.strip()[:1] + name).encode(), value.strip().encode()


def _codes() -> dict[tuple[int, int], int]:
    """Bytes by their codes: length and value."""
    found, code, before = dict[tuple[int, int], int](), 0, 0
    for length, symbols in SYMBOLS.items():
        code <<= length - before
        for code, symbol in enumerate(symbols, code):  # noqa: B020
            found[length, code] = symbol
        code, before = code + 1, length
    return found


STATIC = tuple(map(_static, KNOWN.strip().splitlines()))
CODES = _codes()
LONGEST = max(SYMBOLS)


class HeaderDecoder:
    """Of one connection. Its errors are ConnectionProblems, behind which no other block can be read."""

    def __init__(self, max_bytes: int) -> None:
        """`max_bytes`: of one list of headers."""
        self._max_bytes = max_bytes
        self._table: list[Header] = []  # the newest last
        self._size, self._bound = 0, TABLE_BYTES

    def decode(self, block: bytes) -> list[Header]:
        """The headers of one block."""
        try:
            return self._decode(block)
        except IndexError:
            raise _broken("a block ends early") from None

    def _decode(self, block: bytes) -> list[Header]:
        headers, at, size = list[Header](), 0, 0
        while at < len(block):
            first = block[at]
            if first & 0x80:
                index, at = _integer(block, at, 7)
                header = self._entry(index)
            elif first & 0xE0 == 0x20:
                bound, at = _integer(block, at, 5)
                if bound > TABLE_BYTES or headers:
                    raise _broken("a table's size is out of place")
                self._shrink(bound)
                continue
            else:
                header, at = self._literal(block, at, 6 if first & 0x40 else 4)
                if first & 0x40:
                    self._keep(header)
            headers.append(header)
            size += len(header[0]) + len(header[1]) + OVERHEAD
            if size > self._max_bytes:
                raise ConnectionProblem(Problem.ENHANCE_YOUR_CALM, "headers without end")
        return headers

    def _literal(self, block: bytes, at: int, prefix: int) -> tuple[Header, int]:
        index, at = _integer(block, at, prefix)
        if index:
            name = self._entry(index)[0]
        else:
            name, at = _string(block, at)
        value, at = _string(block, at)
        return (name, value), at

    def _entry(self, index: int) -> Header:
        if 0 < index <= len(STATIC):
            return STATIC[index - 1]
        place = index - len(STATIC)
        if not 0 < place <= len(self._table):
            raise _broken("a header is not known")
        return self._table[-place]

    def _keep(self, header: Header) -> None:
        self._table.append(header)
        self._size += len(header[0]) + len(header[1]) + OVERHEAD
        self._forget()

    def _shrink(self, bound: int) -> None:
        self._bound = bound
        self._forget()

    def _forget(self) -> None:
        count = 0
        while self._size > self._bound:
            name, value = self._table[count]
            self._size -= len(name) + len(value) + OVERHEAD
            count += 1
        del self._table[:count]


def _integer(block: bytes, at: int, prefix: int) -> tuple[int, int]:
    """A number whose first bits are a byte's last ones, and where it ends."""
    most = (1 << prefix) - 1
    value, at = block[at] & most, at + 1
    if value < most:
        return value, at
    for shift in range(0, 7 * MAX_INTEGER_BYTES, 7):
        byte, at = block[at], at + 1
        value += (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise _broken("a number is too large")


def _string(block: bytes, at: int) -> tuple[bytes, int]:
    """Bytes, and where they end."""
    huffman = block[at] & 0x80
    size, at = _integer(block, at, 7)
    if at + size > len(block):
        raise _broken("a block ends early")
    found = block[at : at + size]
    return (_unpacked(found) if huffman else found), at + size


def _unpacked(data: bytes) -> bytes:
    """Out of Huffman's code. The bits that fill the last byte up are ones."""
    found, code, length = bytearray(), 0, 0
    for byte in data:
        for shift in range(7, -1, -1):
            code, length = code << 1 | byte >> shift & 1, length + 1
            if (symbol := CODES.get((length, code))) is not None:
                found.append(symbol)
                code = length = 0
            elif length > LONGEST:
                raise _broken("a code is not known")
    if length > 7 or code != (1 << length) - 1:
        raise _broken("a text ends within a code")
    return bytes(found)


def _broken(text: str) -> ConnectionProblem:
    return ConnectionProblem(Problem.COMPRESSION_ERROR, text)

"""Headers of calls out of HPACK (RFC 7541), as clients pack them.

A server's own headers are literals (`frames.header_block`), so nothing is kept for them.
"""

from hpack import Decoder
from hpack.exceptions import HPACKError, OversizedHeaderListError

from polyfleet.gateway.grpc.http2.frames import ConnectionProblem, Problem

Header = tuple[bytes, bytes]
MAX_KNOWN, KNOWN_BYTES = 8, 1024  # blocks of a client, who says much the same for each call; of one of them


class HeaderDecoder:
    """Of one connection. Its errors are ConnectionProblems, behind which no other block can be read."""

    def __init__(self, max_bytes: int) -> None:
        """`max_bytes`: of one list of headers."""
        self._decoder = Decoder(max_header_list_size=max_bytes)
        self._known: dict[bytes, tuple[Header, ...]] = {}  # blocks that changed nothing of the table, since it changed

    def decode(self, block: bytes) -> tuple[Header, ...]:
        """The headers of one block."""
        if (known := self._known.get(block)) is not None:
            return known
        newest, *sizes = self._table()
        try:
            headers = tuple((name, value) for name, value in self._decoder.decode(block, raw=True))
        except OversizedHeaderListError:
            raise ConnectionProblem(Problem.ENHANCE_YOUR_CALM, "headers without end") from None
        except HPACKError as error:
            raise ConnectionProblem(Problem.COMPRESSION_ERROR, str(error)) from None
        now, *sizes_now = self._table()
        if now is not newest or sizes != sizes_now or len(self._known) >= MAX_KNOWN:
            self._known.clear()
        if now is newest and sizes == sizes_now and len(block) <= KNOWN_BYTES:
            self._known[block] = headers
        return headers

    def _table(self) -> tuple[object, int, int]:
        """The newest entry, each of which is an object of its own, how many there are, and their room."""
        table = self._decoder.header_table
        entries = table.dynamic_entries
        return entries[0] if entries else None, len(entries), table.maxsize

"""Headers of calls out of HPACK (RFC 7541), as clients pack them.

A server's own headers are literals (`frames.header_block`), so nothing is kept for them.
"""

from hpack import Decoder
from hpack.exceptions import HPACKError, OversizedHeaderListError

from polyfleet.gateway.grpc.http2.frames import ConnectionProblem, Problem

Header = tuple[bytes, bytes]


class HeaderDecoder:
    """Of one connection. Its errors are ConnectionProblems, behind which no other block can be read."""

    def __init__(self, max_bytes: int) -> None:
        """`max_bytes`: of one list of headers."""
        self._decoder = Decoder(max_header_list_size=max_bytes)

    def decode(self, block: bytes) -> list[Header]:
        """The headers of one block."""
        try:
            return [(name, value) for name, value in self._decoder.decode(block, raw=True)]
        except OversizedHeaderListError:
            raise ConnectionProblem(Problem.ENHANCE_YOUR_CALM, "headers without end") from None
        except HPACKError as error:
            raise ConnectionProblem(Problem.COMPRESSION_ERROR, str(error)) from None

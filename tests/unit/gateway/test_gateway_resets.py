"""A connection that its client has reset, which no event has told yet, is closed like any other."""

import errno

from tests.support.http2_wire import Wire

from polyfleet.gateway.http.connection.transport import LingeringTransport


class Reset(Wire):
    """A socket without a peer: its end can't be sent."""

    tried = 0

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.tried += 1
        raise OSError(errno.ENOTCONN, "Transport endpoint is not connected")


async def test_of_grpc() -> None:
    wire = Reset()
    wire.connection.close()
    assert wire.tried == 1


async def test_of_http() -> None:
    transport = Reset()
    LingeringTransport(transport, unread=lambda: True).close()
    assert transport.tried == 1

"""The HTTP port's connections must not hold back small writes: server-sent events are small."""

import socket

from polyfleet.gateway.ports.listen import open_socket


def test_connections_send_small_writes_at_once() -> None:
    with open_socket("127.0.0.1:0", "--http-listen") as listener, socket.create_connection(listener.getsockname()):
        connection, _ = listener.accept()
        with connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0

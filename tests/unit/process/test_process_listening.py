"""Ports as every process opens, checks and finds them."""

import socket

import pytest

from polyfleet.process.config import ConfigError
from polyfleet.process.listening import (
    ListenError,
    check_free,
    free_address,
    free_addresses,
    open_socket,
    parse_address,
)
from polyfleet.wire.auth import split_host_port

BAD_PORTS = ("65536", "x", "-1", "²", "1 ", "9" * 9999)


def test_connections_send_small_writes_at_once() -> None:
    """Server-sent events are small."""
    with open_socket("127.0.0.1:0", "--http-listen") as listener, socket.create_connection(listener.getsockname()):
        connection, _ = listener.accept()
        with connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0


def test_a_port_in_use_is_named_with_its_option() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        for take in (check_free, open_socket):
            with pytest.raises(ListenError) as caught:
                take(address, "--listen")
            assert str(caught.value) == f"{address} is in use: free it, or choose another address with --listen."
    check_free(address, "--listen")


def test_a_host_of_others_is_named_with_the_reason() -> None:
    with pytest.raises(
        ListenError, match=r"^192\.0\.2\.1:0 can't be listened on \(.+\): free it, or choose .*--listen"
    ):
        check_free("192.0.2.1:0", "--listen")


@pytest.mark.parametrize(
    "address", ["", "localhost", "h:", "h:65536", ":1", "h:x", "h:-1", "h:²", "h:1 ", f"h:{'9' * 9999}"]
)
def test_what_is_no_address_is_said_with_its_option(address: str) -> None:
    with pytest.raises(ConfigError, match=r"^--listen must be host:port with a port from 0 to 65535, not "):
        parse_address(address, "--listen")


@pytest.mark.parametrize("host", ["a..b", "..", "a" * 64])
def test_a_host_that_can_be_no_name_is_said_so(host: str) -> None:
    with pytest.raises(ListenError, match=r"its host is no name of a host"):
        check_free(f"{host}:80", "--listen")


def test_port_0_may_be_refused() -> None:
    assert parse_address("[::1]:0", "--listen") == ("::1", 0)
    with pytest.raises(ConfigError, match="from 1 to 65535"):
        check_free("127.0.0.1:0", "--listen", lowest_port=1)


def test_free_addresses_are_distinct_and_keep_their_host() -> None:
    found = free_addresses(8)
    assert len(set(found)) == 8
    for address in found:
        assert split_host_port(address)[0] == "127.0.0.1"
        check_free(address, "--listen", lowest_port=1)


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
def test_a_free_address_keeps_its_host_and_any_given_port(host: str) -> None:
    try:
        found = free_address(f"{host}:0")
    except OSError:
        pytest.skip(f"{host} is not here")
    assert found.startswith(f"{host}:")
    assert 0 < int(found.rpartition(":")[2]) < 65536
    assert free_address(f"{host}:77") == f"{host}:77"

"""Ports: opened, looked at, found free; one sentence for the operator where that fails."""

import errno
import re
import socket
from contextlib import ExitStack, suppress

from polyfleet.process.config import ConfigError
from polyfleet.wire.auth import join_host_port, split_host_port

BACKLOG = 1024
MAX_PORT = 65535
PORT = re.compile(r"[0-9]{1,5}")


class ListenError(ConfigError):
    """An address can't be listened on. Names the address, the reason, and the flag that changes it."""

    def __init__(self, address: str, flag: str, error: OSError | None = None) -> None:
        number = error.errno if error else None
        reason = "is in use" if number == errno.EADDRINUSE else "can't be listened on"
        if error is not None and number != errno.EADDRINUSE:
            reason += f" ({error.strerror or error})"
        super().__init__(f"{address} {reason}: free it, or choose another address with {flag}.")


def open_socket(address: str, flag: str) -> socket.socket:
    """A listening TCP socket at host:port, whose connections send small writes at once.

    Raises ListenError, and ConfigError for what is no address.
    """
    host, port = parse_address(address, flag)
    try:
        listener = _listener(host, port)
        # Inherited by connections. asyncio sets it only where proto is IPPROTO_TCP, which create_server leaves 0;
        # without it each token of a kept-alive connection waits 40 ms for the client's delayed acknowledgement.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listener
    except OSError as error:
        raise ListenError(address, flag, error) from None


def shared_socket(address: str, flag: str) -> socket.socket:
    """A socket that keeps host:port for those that share it, and does not listen itself. Raises ListenError."""
    host, port = parse_address(address, flag)
    kept = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        kept.bind((host, port))
    except OSError as error:
        kept.close()
        raise ListenError(address, flag, error) from None
    return kept


def check_free(address: str, flag: str, lowest_port: int = 0) -> None:
    """Raise ListenError unless the address can be listened on now, ConfigError unless it is one. Port 0 is any free."""
    parse_address(address, flag, lowest_port)
    open_socket(address, flag).close()


def parse_address(address: str, flag: str, lowest_port: int = 0) -> tuple[str, int]:
    """Host and port of host:port. Raises ConfigError."""
    if not is_address(address, lowest_port):
        raise ConfigError(f"{flag} must be host:port with a port from {lowest_port} to {MAX_PORT}, not {address!r}.")
    host, port = split_host_port(address)
    return host, int(port)


def is_address(address: str, lowest_port: int = 0) -> bool:
    """Whether it reads host:port with a port that there is."""
    host, port = split_host_port(address)
    return bool(host) and is_port(port, lowest_port)


def is_port(text: str, lowest: int = 0) -> bool:
    """Whether it reads as the number of a port."""
    return PORT.fullmatch(text) is not None and lowest <= int(text) <= MAX_PORT


def free_address(address: str = "127.0.0.1:0") -> str:
    """`address`, with a free port in place of port 0."""
    return free_addresses(1, address)[0]


def free_addresses(count: int, address: str = "127.0.0.1:0") -> list[str]:
    """So many addresses that nothing listens on now, each with a port of its own where `address` has port 0.

    Raises OSError for a host that can't be listened on.
    """
    host, port = split_host_port(address)
    if port != "0":
        return [address] * count
    with ExitStack() as sockets:
        ports = [sockets.enter_context(_listener(host, 0)).getsockname()[1] for _ in range(count)]
    return [join_host_port(host, found) for found in ports]


def own_address() -> str:
    """This machine's address on the way out, or its name when it has no way out. Nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, suppress(OSError):
        probe.connect(("192.0.2.1", 9))  # RFC 5737: an address of nobody's
        return str(probe.getsockname()[0])
    return socket.gethostname()


def _listener(host: str, port: int) -> socket.socket:
    try:
        family, _, _, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except UnicodeError:
        raise OSError(errno.EINVAL, "its host is no name of a host") from None
    return socket.create_server(target[:2], family=family, backlog=BACKLOG)

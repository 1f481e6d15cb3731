"""Ports looked at before anything is started on them."""

import errno
import socket

from polyfleet.scheduler.config import SchedulerConfig
from polyfleet.wire.auth import split_host_port
from polyfleet.wire.config import ConfigError


def check_ports(config: SchedulerConfig) -> None:
    """Raise ConfigError that names the first address which can't be listened on."""
    for address, what, option in (
        (config.listen, "the Fleet service", "--listen"),
        (config.metrics_listen, "the scheduler's metrics", "--metrics-listen"),
    ):
        host, port = parse_address(address, option)
        try:
            with _bound(host, port):
                pass
        except OSError as error:
            problem = "is in use" if error.errno == errno.EADDRINUSE else f"can't be listened on ({error.strerror})"
            raise ConfigError(f"{address} {problem}: {what} needs it, or another address with {option}.") from None


def parse_address(address: str, option: str) -> tuple[str, int]:
    """Host and port of host:port. Raises ConfigError."""
    host, port = split_host_port(address)
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ConfigError(f"{option} must be host:port with a port from 1 to 65535, not {address!r}.")
    return host, int(port)


def free_address(address: str) -> str:
    """`address`, with a free port in place of port 0."""
    host, port = split_host_port(address)
    if port != "0":
        return address
    with _bound(host, 0) as listener:
        found = listener.getsockname()[1]
    return f"[{host}]:{found}" if ":" in host else f"{host}:{found}"


def _bound(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(target)
    except OSError:
        listener.close()
        raise
    return listener

"""Opening ports, and one sentence for the operator where that fails."""

import errno
import socket
import ssl

from polyfleet.wire.auth import split_host_port
from polyfleet.wire.config import ConfigError

BACKLOG = 1024


class ListenError(ConfigError):
    """An address can't be listened on. Names the address, the reason, and the flag that changes it."""

    def __init__(self, address: str, flag: str, error: OSError | None = None) -> None:
        number = error.errno if error else None
        reason = "is in use" if number == errno.EADDRINUSE else "can't be listened on"
        if error is not None and number != errno.EADDRINUSE:
            reason += f" ({error.strerror or error})"
        super().__init__(f"{address} {reason}: free it, or choose another address with {flag}.")


def open_socket(address: str, flag: str) -> socket.socket:
    """A listening TCP socket at host:port, whose connections send small writes at once. Raises ListenError."""
    host, port = split_address(address, flag)
    try:
        family, _, _, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.create_server(target[:2], family=family, backlog=BACKLOG)
        # Inherited by connections. asyncio sets it only where proto is IPPROTO_TCP, which create_server leaves 0;
        # without it each token of a kept-alive connection waits 40 ms for the client's delayed acknowledgement.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listener
    except OSError as error:
        raise ListenError(address, flag, error) from None


def check_free(address: str, flag: str) -> None:
    """Raise ListenError unless the address can be listened on now. Port 0 is any free one."""
    open_socket(address, flag).close()


def split_address(address: str, flag: str) -> tuple[str, int]:
    """Host and port of host:port. Raises ConfigError."""
    host, port = split_host_port(address)
    if not host or not port.isdigit() or int(port) > 65535:
        raise ConfigError(f"{flag} must be host:port, not {address!r}.")
    return host, int(port)


def check_tls(cert: str, key: str) -> None:
    """Raise ConfigError unless the two PEM files belong together."""
    for path in (cert, key):
        try:
            open(path, "rb").close()
        except OSError as error:
            raise ConfigError(f"The TLS file {path} can't be read: {error.strerror}.") from None
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key)
    except ssl.SSLError as error:
        reason = (error.reason or str(error)).replace("_", " ").lower()
        raise ConfigError(f"The TLS files {cert} and {key} can't be used together: {reason}.") from None

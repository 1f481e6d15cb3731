"""Where a worker's room on the channel is, and by which its peers know each other. Loads nothing of the channel."""

import socket
import ssl
from pathlib import Path
from typing import NamedTuple


class Certificates(NamedTuple):
    """By which the workers of one fleet know each other: tls.crt, tls.key and ca.crt, and the name that all have."""

    folder: str
    name: str

    def wrap(self, end: socket.socket, *, server: bool) -> socket.socket:
        """Shake hands over a connected socket. Raises OSError unless the peer has a certificate of that name.

        Files are read each time, so renewed ones count at once.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
        folder = Path(self.folder)
        context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
        context.load_verify_locations(folder / "ca.crt")
        context.verify_mode = ssl.CERT_REQUIRED
        wrapped = context.wrap_socket(end, server_side=server, server_hostname=None if server else self.name)
        names = dict(wrapped.getpeercert() or {}).get("subjectAltName", ())
        if server and ("DNS", self.name) not in names:
            wrapped.close()
            raise OSError(f"the caller's certificate is not {self.name}'s")
        return wrapped


class TransferSettings(NamedTuple):
    """Where a worker's room is: host:port to listen at (port 0: any free one), and certificates, where there are."""

    listen: str
    tls_folder: str = ""
    tls_name: str = ""  # that every worker of the fleet has in its certificate

    @property
    def certificates(self) -> Certificates | None:
        """By which peers know each other; None without any."""
        return Certificates(self.tls_folder, self.tls_name) if self.tls_folder else None


class TransferDoor(NamedTuple):
    """Where a room is entered: its port, its name for processes of its host, and the key of its tickets."""

    port: int
    local: str
    key: bytes

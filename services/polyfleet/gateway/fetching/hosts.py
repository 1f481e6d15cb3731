"""From where images may be fetched. Pure: addresses are resolved elsewhere, and judged here."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from urllib.parse import SplitResult, urlsplit

from polyfleet.wire.limits import FieldError

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network
PORTS = {"https": 443, "http": 80}
MAX_URL_CHARACTERS = 8192
ENTRY = re.compile(r"((?:https?://)?(?:(?:\*\.)?[a-z0-9._-]+|\[[0-9a-f:.]+\])(?::[0-9]{1,5})?)(?:=([0-9a-f.:/,]+))?")
_URL = re.compile(r"[\x21-\x7e]+")
_NAT64 = ip_network("64:ff9b::/96")  # its last 32 bits are an IPv4 address
_UNICAST = ip_network("2000::/3")  # all that IPv6 has given out; others lead to IPv4 addresses or to one site


@dataclass(frozen=True, slots=True)
class ImageHost:
    """An entry of `image_hosts`: `https://` and its port unless the entry names others; `*.` stands for any subdomain.

    Its addresses have to be public, or in one of `networks`.
    """

    scheme: str
    host: str
    port: int
    networks: tuple[Network, ...] = ()

    @classmethod
    def of(cls, entry: str) -> "ImageHost":
        """From `[http://]host[:port][=network,…]`; a host that is an address allows itself. Raises ValueError."""
        found = ENTRY.fullmatch(entry)
        if found is None:
            raise ValueError("must be like images.example.com, *.example.com or http://minio:9000=10.0.0.0/8")
        address, networks = found[1], found[2] or _literal(found[1])
        parts = urlsplit(address if "://" in address else f"https://{address}")
        host, port = parts.hostname or "", parts.port or PORTS[parts.scheme]
        return cls(parts.scheme, host, port, tuple(map(ip_network, networks.split(","))) if networks else ())

    def serves(self, url: SplitResult) -> bool:
        """Whether an address is one of this host's."""
        name = (url.hostname or "").rstrip(".")
        named = name.endswith(self.host[1:]) if self.host.startswith("*.") else name == self.host
        return named and (url.scheme, port_of(url)) == (self.scheme, self.port)

    def allows(self, address: Address) -> bool:
        """Whether a connection may go there."""
        plain = _plain(address)
        if any(plain in network for network in self.networks):
            return True
        return plain.is_global and not plain.is_multicast and (plain.version == 4 or plain in _UNICAST)


def find_host(hosts: Iterable[ImageHost], url: str) -> tuple[ImageHost, SplitResult]:
    """Which host serves a URL, and its parts. Raises FieldError, without a field, for one that none does."""
    if len(url) > MAX_URL_CHARACTERS:
        raise FieldError("", f"must be at most {MAX_URL_CHARACTERS} characters long, not {len(url)}")
    if not _URL.fullmatch(url):
        raise FieldError("", "must be written in printable ASCII characters, without spaces: others as %xx")
    try:
        parts = urlsplit(url)
        port_of(parts)
    except ValueError as error:
        raise FieldError("", f"is no valid URL ({error})") from None
    if parts.username is not None or "\\" in url:
        raise FieldError("", "must have neither a user name nor backslashes")
    found = next((host for host in hosts if host.serves(parts)), None)
    if found is None:
        where = f"{parts.scheme}://{parts.netloc}"
        raise FieldError("", f"must be of a host that this server's operator allows (image_hosts), not {where:.200}")
    return found, parts


def port_of(url: SplitResult) -> int:
    """Where it is served. Raises ValueError for what is no port."""
    return url.port or PORTS.get(url.scheme, 0)


def _literal(address: str) -> str:
    """The host itself, if it is an address."""
    host = urlsplit(address if "://" in address else f"//{address}").hostname or ""
    try:
        return str(ip_address(host))
    except ValueError:
        return ""


def _plain(address: Address) -> Address:
    """The IPv4 address that one of IPv6 leads to, if it does."""
    if isinstance(address, IPv4Address):
        return address
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    tunnel = address.teredo[1] if address.teredo else None
    return address.ipv4_mapped or address.sixtofour or tunnel or address

"""Who may call whom inside a fleet: the fleet token, its constant-time check, and what counts as loopback. Pure.

The rule: a server that has a token wants `authorization: Bearer <fleet token>` on each call, wherever it is bound. One
without a token starts on loopback only, and takes every call of every process of this machine. gRPC health checks are
exempt: probes carry no metadata.
"""

import hmac
import ipaddress
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from urllib.parse import unquote

NEEDS_TOKEN = "This call needs the fleet token: send `authorization: Bearer <fleet token>`."
HEALTH_PREFIX = "/grpc.health.v1.Health/"
FLEET_TOKEN_FILE = "POLYFLEET_FLEET_TOKEN_FILE"
FLEET_KEYS_FILE = "POLYFLEET_FLEET_KEYS_FILE"
AUTHORIZATION = "authorization"
ANY_HOST = ("", "0.0.0.0", "::")  # listened on, it is every address of this machine
MAX_TOKEN_CHARACTERS = 1024
_BEARER = "bearer "
Metadata = Iterable[tuple[str, str | bytes]]


class AuthSetupError(ValueError):
    """A process can't start with this token file or bind address. The message is one sentence for the operator."""


class Forbidden(str):
    """Why a call is refused whose caller is known: PERMISSION_DENIED, not UNAUTHENTICATED."""


def read_token(path: str | Path, what: str = "fleet token") -> str:
    """The token, or other secret that calls carry, in the file's first line, stripped.

    Raises AuthSetupError when it can't be read or is unusable.
    """
    try:
        with open(path, encoding="utf-8") as file:
            token = file.readline(2 * MAX_TOKEN_CHARACTERS).strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise AuthSetupError(f"The {what} file {path} can't be read: {reason}.") from None
    if not token:
        raise AuthSetupError(f"The {what} file {path} is empty: its first line must be the {what}.")
    if not token.isascii() or not token.isprintable():
        problem = "holds characters that HTTP/2 can't carry: use printable ASCII"
        raise AuthSetupError(f"The {what} file {path} {problem}.")
    if len(token) > MAX_TOKEN_CHARACTERS:
        problem = f"holds more than the {MAX_TOKEN_CHARACTERS} characters that a call can carry: use a shorter one"
        raise AuthSetupError(f"The {what} file {path} {problem}.")
    return token


def fleet_token(path: str | Path | None = None, environ: Mapping[str, str] = os.environ) -> str | None:
    """The token of `path`, else of the file that POLYFLEET_FLEET_TOKEN_FILE names, else None. Raises AuthSetupError."""
    chosen = path or environ.get(FLEET_TOKEN_FILE)
    return read_token(chosen) if chosen else None


def check_bind(address: str, token: str | None, *, keys: bool = False) -> None:
    """Raise AuthSetupError when a server would open `address` (host:port) beyond loopback without token or `keys`."""
    if token is None and not keys and not is_loopback(address):
        raise AuthSetupError(
            f"Listening on {address} needs a fleet token: give --fleet-token-file (or {FLEET_TOKEN_FILE}), "
            "or listen on 127.0.0.1."
        )


def bearer_metadata(token: str | None) -> tuple[tuple[str, str], ...]:
    """gRPC metadata of a call that presents `token`; empty without one."""
    return ((AUTHORIZATION, f"Bearer {token}"),) if token else ()


def bearer_of(header: str | bytes | None) -> str | None:
    """The credential in an `authorization` header's value; None when there is none or it is no bearer."""
    if isinstance(header, bytes):
        header = header.decode("latin-1")
    if header is None or header[: len(_BEARER)].lower() != _BEARER:
        return None
    return header[len(_BEARER) :].strip()


def bearer_in(metadata: Metadata | None) -> str | None:
    """The bearer credential in gRPC metadata; None when there is none."""
    values = [value for key, value in metadata or () if key.lower() == AUTHORIZATION]
    return bearer_of(values[0]) if values else None


def same_secret(presented: str | None, expected: str) -> bool:
    """Whether the two are equal, in a time that does not depend on where they differ."""
    return hmac.compare_digest((presented or "").encode(), expected.encode())


def may_call(bound: str, metadata: Metadata | None, token: str | None) -> bool:
    """Whether a server bound to `bound` takes a call with this metadata: with its token; without one on loopback."""
    if token is None:
        return is_loopback(bound)
    return same_secret(bearer_in(metadata), token)


def fleet_objection(bound: str, token: str | None, method: str, metadata: Metadata | None) -> str:
    """Why a server bound to `bound` refuses a call of `method` (its full path) by the rule above; empty: it doesn't."""
    return "" if method.startswith(HEALTH_PREFIX) or may_call(bound, metadata, token) else NEEDS_TOKEN


def is_loopback(address: str) -> bool:
    """Whether `address` is this machine alone.

    Takes `host`, `host:port`, `[v6]:port`, and gRPC's peer forms `ipv4:…`, `ipv6:…` (percent-encoded), `unix:…`.
    Names other than localhost are not resolved and count as not loopback; so does an empty host.
    """
    text = unquote(address)
    if text.startswith(("unix:", "unix-abstract:")):
        return True
    for scheme in ("ipv4:", "ipv6:"):
        text = text.removeprefix(scheme)
    host = split_host_port(text)[0].lower()
    if host == "localhost":
        return True
    try:
        ip = ipaddress.ip_address(host.split("%", 1)[0])
    except ValueError:
        return False
    mapped = ip.ipv4_mapped if isinstance(ip, ipaddress.IPv6Address) else None
    return (mapped or ip).is_loopback


def join_host_port(host: str, port: int) -> str:
    """host:port, with an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split_host_port(address: str) -> tuple[str, str]:
    """`host:port`, `[v6]:port`, a bare host or a bare IPv6 address as (host without brackets, port or "")."""
    if address.startswith("["):
        host, _, rest = address[1:].partition("]")
        return host, rest.removeprefix(":")
    if address.count(":") == 1:
        host, _, port = address.partition(":")
        return host, port
    return address, ""

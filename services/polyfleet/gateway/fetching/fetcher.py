"""Fetches images: nothing of a host that is not allowed, from no address that is not, and no more than is allowed."""

import asyncio
import logging
import socket
import ssl
import time
from collections.abc import Awaitable, Callable, Sequence
from ipaddress import ip_address
from urllib.parse import SplitResult, urljoin

from prometheus_client import Histogram

from polyfleet.gateway.fetching.hosts import ImageHost, find_host, port_of
from polyfleet.gateway.fetching.reply import Reply
from polyfleet.process.within import Within
from polyfleet.wire.limits import FieldError

MAX_REDIRECTS = 3
AT_ONCE = 16  # of all requests
READ_BYTES = 65_536
NO_HOSTS = "must be a data URL, data:image/png;base64,…: this server fetches no images"
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
log = logging.getLogger(__name__)


async def resolve(host: str, port: int) -> Sequence[str]:
    """All addresses of a host. Raises OSError."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(each[4][0]) for each in found]


class ImageFetcher:
    """One for a gateway. Lives in one event loop."""

    def __init__(
        self,
        hosts: Sequence[ImageHost],
        max_bytes: int,
        seconds: float,
        took: Histogram,
        resolve: Resolve = resolve,
        certificates: Callable[[], ssl.SSLContext] = ssl.create_default_context,
    ) -> None:
        """`seconds`: that one image may take; `took`: how long they did, with the label `result`."""
        self._hosts, self._max_bytes, self._seconds = hosts, max_bytes, seconds
        self._took = took
        self._resolve = resolve
        self._tls = certificates() if any(each.scheme == "https" for each in hosts) else None
        self._turn = asyncio.Semaphore(AT_ONCE)
        for result in ("fetched", "refused", "failed"):
            took.labels(result)

    async def fetch(self, url: str) -> bytes:
        """What is at a URL. Raises FieldError, without a field."""
        if not self._hosts:
            raise FieldError("", NO_HOSTS)
        began, result, problem = time.monotonic(), "refused", ""
        try:
            host, parts = find_host(self._hosts, url)
            result = "failed"
            fetched = await self._within(self._follow(host, parts))
            result = "fetched"
            return fetched
        except FieldError as error:
            problem = error.problem
            raise
        finally:
            seconds = time.monotonic() - began
            self._took.labels(result).observe(seconds)
            log.info("An image by its URL.", extra={"result": result, "seconds": round(seconds, 3), "problem": problem})

    async def _within(self, work: Awaitable[bytes]) -> bytes:
        async with self._turn:
            try:
                with Within(self._seconds):
                    return await work
            except asyncio.TimeoutError:
                raise FieldError("", f"took longer than {self._seconds:g} s to fetch") from None
            except ssl.SSLCertVerificationError as error:
                raise FieldError("", f"could not be fetched: {error.verify_message or 'bad certificate'}") from None
            except (OSError, UnicodeError):  # the latter of names that are none
                raise FieldError("", "could not be fetched: the host could not be reached") from None

    async def _follow(self, host: ImageHost, parts: SplitResult) -> bytes:
        """Through redirects, each of which has to be allowed as the first address was."""
        for _ in range(MAX_REDIRECTS + 1):
            reply = await self._get(host, parts)
            if not reply.location:
                break
            host, parts = self._redirected(parts, reply.location)
        else:
            raise FieldError("", f"redirects more than {MAX_REDIRECTS} times")
        if reply.status != 200:
            raise FieldError("", f"could not be fetched: the host answered with status {reply.status}")
        return reply.body

    def _redirected(self, parts: SplitResult, location: str) -> tuple[ImageHost, SplitResult]:
        try:
            return find_host(self._hosts, urljoin(parts.geturl(), location))
        except FieldError as error:
            raise FieldError("", f"redirects to a URL that {error.problem}") from None
        except ValueError:
            raise FieldError("", "redirects to what is no valid URL") from None

    async def _get(self, host: ImageHost, parts: SplitResult) -> Reply:
        reader, writer = await self._connect(host, parts)
        try:
            writer.write(_request(parts))
            reply = Reply(self._max_bytes)
            while not reply.complete:
                reply.feed(await reader.read(READ_BYTES))
            return reply
        finally:
            writer.transport.abort()

    async def _connect(self, host: ImageHost, parts: SplitResult) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """To an address that was judged: a name that is resolved twice may lead elsewhere the second time."""
        name, port = parts.hostname or "", port_of(parts)
        found = await self._resolve(name, port)
        allowed = [address for address in dict.fromkeys(found) if host.allows(ip_address(address.partition("%")[0]))]
        if not allowed:
            raise FieldError("", f"could not be fetched: no address of {name:.200} is a public one")
        tls, server = (self._tls, name) if parts.scheme == "https" else (None, None)
        for address in allowed[:-1]:
            try:
                return await asyncio.open_connection(address, port, ssl=tls, server_hostname=server)
            except ssl.SSLError:
                raise
            except OSError:
                continue
        return await asyncio.open_connection(allowed[-1], port, ssl=tls, server_hostname=server)


def _request(parts: SplitResult) -> bytes:
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    head = f"GET {path} HTTP/1.1", f"Host: {parts.netloc}", "User-Agent: polyfleet", "Accept: image/*"
    return "\r\n".join((*head, "Accept-Encoding: identity", "Connection: close", "", "")).encode("ascii")

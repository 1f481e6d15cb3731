"""Dials workers: a `Worker.Session` over HTTP/2 of our own, which costs no thread and no turn of the event loop."""

import asyncio
import ssl
from collections.abc import Callable
from functools import partial

from polyfleet.gateway.grpc.http2.client import StreamingCall
from polyfleet.process.channels import FleetAccess
from polyfleet.process.keys import Role
from polyfleet.process.within import Within
from polyfleet.v1 import worker_pb2
from polyfleet.wire.auth import split_host_port

SESSION = f"/{worker_pb2.DESCRIPTOR.services_by_name['Worker'].full_name}/Session"
MAX_EVENT_BYTES = 64 * 1024 * 1024
DIAL_SECONDS = 3.0


class WorkerDialler:
    """A `fleet.dialling.Dial` that shows workers what `access` says."""

    def __init__(self, access: FleetAccess) -> None:
        self._access = access

    async def __call__(self, address: str, received: Callable[[bytes], None]) -> StreamingCall:
        """See Dial."""
        host, port = split_host_port(address)
        make = partial(StreamingCall, SESSION, self._access.metadata, received, MAX_EVENT_BYTES)
        try:
            tls = self._access.dialled(Role.WORKER)
            with Within(DIAL_SECONDS):
                return (await asyncio.get_running_loop().create_connection(make, host, int(port or 0), **tls))[1]
        except asyncio.TimeoutError:
            raise OSError(f"The worker at {address} did not answer within {DIAL_SECONDS:g} s.") from None
        except ssl.SSLError as error:
            raise OSError(f"TLS handshake failed: {error}") from None
        except (ValueError, OverflowError):
            raise OSError(f"{address!r} is no address.") from None

"""An HTTP port: uvicorn inside the gateway's own event loop, behind the doors."""

import asyncio
import contextlib
import ssl
from collections.abc import Iterator
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from polyfleet.gateway.begins import Begins
from polyfleet.gateway.config import Limits
from polyfleet.gateway.http.connection.protocol import BoundedProtocol
from polyfleet.gateway.pace import Pace
from polyfleet.gateway.ports.acceptor import Acceptor
from polyfleet.gateway.ports.certificate import ServedCertificate
from polyfleet.gateway.ports.doors import Doors, Visit
from polyfleet.gateway.ports.taking import Source, opened
from polyfleet.process.within import Within

DATE_SECONDS = 1.0


class _Server(uvicorn.Server):
    """uvicorn's server with an Acceptor in place of asyncio's server."""

    def __init__(self, config: uvicorn.Config, limits: Limits, doors: Doors, begins: Begins) -> None:
        super().__init__(config)
        self._limits = limits
        self._doors = doors
        self._pace, self._begins = Pace(), begins
        self._told_to_exit = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are the process's own business."""
        yield

    async def startup(self, sockets: Any = None) -> None:
        """Take connections off the one socket."""
        acceptor = Acceptor(sockets[0], self._doors, self._protocol, self.config.ssl, self._limits.header_seconds)
        self.servers = [acceptor]  # type: ignore[list-item]
        self.started = True

    async def main_loop(self) -> None:
        """Keep the date in answers true, once a second; uvicorn itself would wake up ten times."""
        while not await self.on_tick(0):
            with contextlib.suppress(asyncio.TimeoutError), Within(DATE_SECONDS):
                await self._told_to_exit.wait()

    def leave(self) -> None:
        """Take the connections that wait, and no more."""
        for acceptor in self.servers:
            acceptor.leave()  # type: ignore[attr-defined]

    def let_go(self) -> None:
        """End connections that wait for a request, and each other one behind the answer that it waits for."""
        for connection in list(self.server_state.connections):
            connection.shutdown()

    def exit(self) -> None:
        """End `serve`, at once."""
        self.should_exit = True
        self._told_to_exit.set()

    def _protocol(self, visit: Visit) -> BoundedProtocol:
        return BoundedProtocol(
            self.config,
            self.server_state,
            {},
            limits=self._limits,
            doors=self._doors,
            visit=visit,
            pace=self._pace,
            begins=self._begins,
        )


class HttpServer:
    """Serves `app` at `address` (host:port) to those whom `doors` let in.

    Binds when made, but where `source` gives connections: raises ListenError, which names `flag`, if it can't.
    """

    def __init__(
        self,
        app: ASGIApp,
        address: str,
        flag: str,
        limits: Limits,
        doors: Doors,
        *,
        certificate: ServedCertificate | None = None,
        begins: Begins | None = None,
        source: Source | None = None,
    ) -> None:
        def tls_context(*_: object) -> ssl.SSLContext:
            assert certificate is not None
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            certificate.use_in(context)
            return context

        self._source, self.port = opened(address, flag, source)
        self.doors = doors
        settings = uvicorn.Config(
            app,
            http=BoundedProtocol,
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=1,
            ssl_context_factory=tls_context if certificate else None,
        )
        self._server = _Server(settings, limits, doors, begins or Begins())
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Take requests."""
        self._task = asyncio.create_task(self._server.serve(sockets=[self._source]))  # type: ignore[list-item]
        while not self._server.started and not self._task.done():
            await asyncio.sleep(0.01)

    def leave(self) -> None:
        """Close the port; connections that are there, or wait to be taken, may send requests."""
        if self._source.fileno() >= 0:
            self._server.leave()
            self._source.close()

    def let_go(self) -> None:
        """No more requests over the connections that are there."""
        self._server.let_go()

    async def stop(self) -> None:
        """Take no requests; those that run get a second."""
        self._server.exit()
        if self._task is not None:
            await self._task
        self._source.close()
